r"""Encodes ASCII text word by word, so that a word is encoded once and not in every text.

Byte-level tokenizers cut a text into words by a regular expression and encode each by itself. For the expressions
below, Python's own `re` does the same to ASCII: `\p{L}` is then `A-Za-z`, `\p{N}` is `0-9`, and a normalizer that
composes characters changes nothing.
"""

import re
from collections.abc import Callable
from typing import Any

_MAX_WORDS = 50_000
_MAX_NEW_WORDS = 1000
"""Number of new words from which a text is encoded as a whole, which then costs less than word by word."""
_LONGEST_WORD = 64

_SPLITS = (
    # Qwen 2 to 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Llama 3
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Mistral Nemo
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_IN_ASCII = {
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]": "[A-Z]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]": "[a-z]",
    r"\p{L}\p{N}]": "A-Za-z0-9]",
    r"\p{L}": "[A-Za-z]",
    r"\p{N}": "[0-9]",
}
"""Rewrites of a pattern for ASCII text, in this order: the last two apply outside of brackets only."""

_ASCII_OF_DIGITS_AND_GPT2 = (
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+"
)
"""The pattern of SmolLM2. Every digit is a part by itself, so a space before a digit does not join it."""


class WordEncoder:
    """The words of a tokenizer that were met already, with their ids."""

    def __init__(self, cut: re.Pattern[str], encode: Callable[[str], tuple[int, ...]]) -> None:
        """`encode` is the tokenizer's own function, for words and for texts that are not cut."""
        self._cut = cut.findall
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text that holds no added token."""
        if not text.isascii():
            return self._encode(text)
        words, known = self._cut(text), self._known
        new = {word for word in words if word not in known}
        if len(new) > _MAX_NEW_WORDS:
            return self._encode(text)
        if len(known) + len(new) > _MAX_WORDS:
            known.clear()
            new = set(words)
        for word in new:
            known[word] = self._encode(word)
        ids = tuple([i for word in words for i in known[word]])
        for word in new:
            if len(word) > _LONGEST_WORD:
                del known[word]  # seldom said again, and large
        return ids


_WORD_BEGINS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
"""Beginning of a word, with its space. Each pattern above ends a word before it, and no normalizer
composes across it."""


def windows(text: str, size: int) -> list[str]:
    """`text` cut between words into parts of about `size` characters, for a tokenizer with a known pattern.

    >>> windows("one two three", 4)
    ['one two', ' three']
    """
    parts, begin = [], 0
    while match := _WORD_BEGINS.search(text, begin + size):
        parts.append(text[begin : match.start()])
        begin = match.start()
    return [*parts, text[begin:]] if begin < len(text) else parts


def word_pattern(document: dict[str, Any]) -> re.Pattern[str] | None:
    """A pattern that cuts ASCII text as this `tokenizer.json` does; None if no such pattern is known."""
    model, normalizer = document.get("model") or {}, document.get("normalizer")
    composes_only = normalizer in (None, {"type": "NFC"}, {"type": "Sequence", "normalizers": []})
    if model.get("type") != "BPE" or model.get("dropout") or not composes_only:
        return None
    pattern = _ascii_pattern(document.get("pre_tokenizer"))
    return None if pattern is None else re.compile(pattern, re.ASCII)


def _ascii_pattern(pre_tokenizer: Any) -> str | None:
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": split},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return _in_ascii(split) if split in _SPLITS else None
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        }:
            return _ASCII_OF_DIGITS_AND_GPT2
        case _:
            return None


def _in_ascii(pattern: str) -> str:
    for unicode, ascii_only in _IN_ASCII.items():
        pattern = pattern.replace(unicode, ascii_only)
    return pattern
