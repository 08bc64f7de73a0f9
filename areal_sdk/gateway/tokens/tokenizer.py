"""Text to token ids and back, exactly: no injected special tokens, no broken characters."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
from tokenizers import AddedToken
from tokenizers import Tokenizer as HfTokenizer

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import TooManyTokensError
from areal_sdk.gateway.tokens.word_encoder import WordEncoder, windows, word_pattern
from areal_sdk.gateway.untrusted import LARGE

BREAKER = "\ufdd0"
"""A noncharacter put inside text that looks like a special token, so that it cannot become one.

Unicode reserves it for internal use: no text that is interchanged may hold it.
"""

_ANCHOR = "\ufdd1"
"""Text that is encoded before a continuation, so that the continuation is not treated as the start of a string."""

_BETWEEN_LETTERS = re.compile(r"(?<=\S)(?=\S)")

_COMPOSED = 4
"""Number that NFC stays below: it composes fewer characters than this into one."""

_CACHED_CHARACTERS = 2_000_000
"""Total size in characters of the texts whose tokens are kept. System prompts, tools and questions come again in
every sibling, so each is encoded once."""


class Tokenizer:
    """A model's `tokenizer.json`: fast encoding, with control over which text becomes a special token."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._hf = HfTokenizer.from_str(source.decode())
        self._hf.no_truncation()
        self._hf.no_padding()
        added = self._hf.get_added_tokens_decoder()
        self.added: dict[str, int] = {token.content: i for i, token in added.items()}
        """Every added token: the special ones and those such as `<tool_call>` that are text too."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        specials = [token.content for token in added.values() if token.special]
        self._added_ids = frozenset(added)
        self._any_added = _alternation(self.added)
        self._any_special = _alternation(specials)
        self._longest_added = max(map(len, self.added), default=1)
        self._first_chars = tuple({text[0] for text in self.added if text})
        document = orjson.loads(source)
        self._splits_cleanly = _splits_cleanly(document, added.values())
        self._is_byte_level = b'"ByteLevel"' in orjson.dumps(document.get("decoder"))
        self._normalizes_added = _normalizes(document) and any(t.normalized for t in added.values())
        self.most_characters_a_token = _most_characters_a_token(document, self._splits_cleanly)
        """Maximum number of characters of a token; None if it is not known."""
        self._pieces: dict[str, tuple[int, ...]] = {}
        self._num_cached = 0
        self._one_of_each: dict[int, int] = {}
        self._encode_text = self._encode_at_once
        self._has_word_pattern = False
        if self._splits_cleanly and (cut := word_pattern(document)) is not None:
            self._encode_text = WordEncoder(cut, self._encode_at_once).encode
            self._has_word_pattern = True
        self.bytes_of: Callable[[int], bytes] = _TokenBytes(self._decode_bytes).__getitem__
        """The bytes a token stands for; a character may be spread over several tokens."""

    @classmethod
    def load(cls, model_dir: Path) -> "Tokenizer":
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{model_dir} has no tokenizer.json: convert its tokenizer once with "
                'pip install "areal-sdk[train]" and AutoTokenizer.from_pretrained(DIR)'
                ".save_pretrained(DIR)"
            )
        try:
            return cls(path.read_bytes())
        except ConfigError:
            raise
        except Exception as exc:
            raise ConfigError(f"{path} cannot be read as a tokenizer: {exc}") from exc

    @property
    def vocab_size(self) -> int:
        return self._hf.get_vocab_size(with_added_tokens=True)

    def token_id(self, text: str) -> int | None:
        return self._hf.token_to_id(text)

    def defuse(self, text: str, *, only_special: bool = False) -> str:
        """`text` with a breaker in everything that `encode` would take for an added token.

        `only_special` leaves tokens such as `<think>` alone, which an assistant writes itself.
        """
        pattern = self._any_special if only_special else self._any_added
        if self._normalizes_added and pattern.search(self._hf.normalizer.normalize_str(text)):
            return _BETWEEN_LETTERS.sub(BREAKER, text)
        if not any(char in text for char in self._first_chars):
            return text
        if len(text) <= LARGE:
            return pattern.sub(lambda match: match[0][0] + BREAKER + match[0][1:], text)
        parts, position = [], 0
        for match in self._matches(pattern, text):
            parts += [text[position : match.start() + 1], BREAKER]
            position = match.start() + 1
        return "".join((*parts, text[position:]))

    def _matches(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        """The matches of `pattern.finditer(text)` for added tokens, found a window at a time. A
        search in a text of megabytes holds the interpreter, and with it the event loop."""
        position = 0
        while position < len(text):
            window = min(position + LARGE, len(text))
            match = pattern.search(text, position, window + self._longest_added)
            if match is not None and match.start() < window:
                yield match
                position = max(match.end(), position + 1)
            else:
                position = window

    def leading_added_token(self, text: str) -> str:
        """The added token that `text` begins with, or an empty string."""
        match = self._any_added.match(text)
        return match[0] if match else ""

    def encode(self, text: str, *, most: int | None = None) -> tuple[int, ...]:
        """Ids of a whole rendered chat; added tokens are recognised unless `defuse` broke them.

        `most` is for large texts, and for threads. The caches are neither read nor filled, and a text with more
        tokens raises `TooManyTokensError` as soon as its beginning has more than `most`.
        """
        if self._splits_cleanly:
            return self._encode_pieces(text) if most is None else self._encode_large(text, most)
        if BREAKER in text:
            return self._encode_broken(text)
        return tuple(_ids(self._hf, text))

    def encode_document(self, text: str, *, most: int | None = None) -> tuple[int, ...]:
        """Ids of raw text, with the token that the tokenizer puts at the start of every text (BOS), if it has one.

        `most` is the limit of `encode`. A large text is encoded twice, once for the limit.
        """
        if most is not None and self._splits_cleanly:
            self._encode_large(text, most)
        return tuple(_ids(self._hf, text, add_special_tokens=True))

    def encode_continuation(self, text: str, *, most: int | None = None) -> tuple[int, ...]:
        """Ids of `text` where it follows other tokens, without what the tokenizer adds at the start of a string."""
        if self._splits_cleanly:
            return self._encode_pieces(text) if most is None else self._encode_large(text, most)
        if BREAKER in text:
            return self._encode_broken(text)
        return tuple(_after_anchor(self._anchored, text))

    def _encode_pieces(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        position = 0
        for match in self._any_added.finditer(text):
            if match.start() > position:
                ids += self._piece(text[position : match.start()])
            ids.append(self.added[match[0]])
            position = match.end()
        if position < len(text):
            ids += self._piece(text[position:])
        return tuple(ids)

    def _encode_large(self, text: str, most: int) -> tuple[int, ...]:
        ids: list[int] = []
        for part in self._parts(text):
            if (added := self.added.get(part)) is not None:
                ids.append(added)
            else:
                ids += self._encode_as_text(part) if BREAKER in part else _ids_apart(self._hf, part)
            if len(ids) > most:
                raise TooManyTokensError(len(ids))
        return tuple(ids)

    def _parts(self, text: str) -> Iterator[str]:
        """The added tokens of a large text and the text between them, cut where a cut changes no token."""
        position = 0
        for match in self._matches(self._any_added, text):
            yield from self._windows(text[position : match.start()])
            yield match[0]
            position = match.end()
        yield from self._windows(text[position:])

    def _windows(self, text: str) -> Sequence[str]:
        return windows(text, LARGE) if self._has_word_pattern else (text,) if text else ()

    def _piece(self, text: str) -> tuple[int, ...]:
        known = self._pieces.get(text)
        if known is not None:
            return known
        if BREAKER in text:
            ids = self.intern(self._encode_as_text(text))
        else:
            ids = self._encode_text(text)
        self._cache_piece(text, ids)
        return ids

    def _encode_at_once(self, text: str) -> tuple[int, ...]:
        return self.intern(self._hf.encode(text, add_special_tokens=False).ids)

    def intern(self, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids` with one object for each token: long prompts then cost half the memory to keep."""
        return tuple(map(self._one_of_each.setdefault, ids, ids))

    def _cache_piece(self, text: str, ids: tuple[int, ...]) -> None:
        self._pieces[text] = ids
        self._num_cached += len(text)
        while self._num_cached > _CACHED_CHARACTERS:
            oldest = next(iter(self._pieces))
            del self._pieces[oldest]
            self._num_cached -= len(oldest)

    def _encode_broken(self, text: str) -> tuple[int, ...]:
        """Ids of text with breakers, for a tokenizer whose added tokens absorb the space around them."""
        ids: list[int] = []
        for piece in re.split(f"([^\\s{BREAKER}]*{BREAKER}[^\\s]*)", text):
            if BREAKER in piece:
                ids += self._encode_as_text(piece)
            elif piece:
                ids += _after_anchor(self._anchored, piece)
        return tuple(ids)

    def _encode_as_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text with breakers. None of the ids is an added token."""
        ids = _after_anchor(self._plain, text.replace(BREAKER, ""))
        if not self._added_ids.isdisjoint(ids):
            # The model's own vocabulary spells the token out (SentencePiece): keep the break.
            ids = [i for part in text.split(BREAKER) for i in _after_anchor(self._plain, part)]
        return tuple(ids)

    @cached_property
    def _anchored(self) -> HfTokenizer:
        tokenizer = HfTokenizer.from_str(self._source.decode())
        tokenizer.add_special_tokens([AddedToken(_ANCHOR, normalized=False, special=True)])
        return tokenizer

    @cached_property
    def _plain(self) -> HfTokenizer:
        """The same tokenizer without added tokens: it reads every character as plain text."""
        document = orjson.loads(self._source)
        document["added_tokens"] = []
        document["post_processor"] = None
        tokenizer = HfTokenizer.from_str(orjson.dumps(document).decode())
        tokenizer.add_special_tokens([AddedToken(_ANCHOR, normalized=False, special=True)])
        return tokenizer

    def decode(self, ids: Iterable[int], *, keep: frozenset[int] = frozenset()) -> str:
        """The text of `ids`, special tokens left out unless in `keep`."""
        detokenizer = Detokenizer(self, keep=keep)
        return detokenizer.feed(tuple(ids)) + detokenizer.finish()

    def _decode_bytes(self, token: int) -> bytes:
        text = self._hf.id_to_token(token)
        if text is None:
            return b""  # a padded row of the embedding: it has no text
        if text in self.added:
            return text.encode()
        if self._is_byte_level:
            return bytes(_BYTE_OF_CHAR[char] for char in text if char in _BYTE_OF_CHAR)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("\u2581", " ").encode()


class _TokenBytes(dict[int, bytes]):
    """Decodes each token once: every sampled token is looked up here."""

    def __init__(self, decode: Callable[[int], bytes]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, token: int) -> bytes:
        found = self[token] = self._decode(token)
        return found


class Detokenizer:
    """Turns sampled ids into text as they come; holds back a character until it is whole."""

    def __init__(self, tokenizer: Tokenizer, *, keep: frozenset[int] = frozenset()) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._hidden = tokenizer.special_ids - keep
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        if not self._hidden.isdisjoint(ids):
            ids = [i for i in ids if i not in self._hidden]
        return self._utf8.decode(b"".join(map(self._bytes_of, ids)))

    def finish(self) -> str:
        """The text of an unfinished character: the replacement character."""
        return self._utf8.decode(b"", final=True)


def _after_anchor(tokenizer: HfTokenizer, text: str) -> list[int]:
    return _ids(tokenizer, _ANCHOR + text)[1:]


def _ids(tokenizer: HfTokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Ids of a text: of a small one at once, of a large one by `_ids_apart`."""
    if len(text) > LARGE:
        return _ids_apart(tokenizer, text, add_special_tokens=add_special_tokens)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    return ids


def _ids_apart(tokenizer: HfTokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Ids of a large text, encoded without holding the interpreter.

    `encode` would keep the interpreter for a millisecond per thousand characters. The offsets, which
    nobody reads, are left out: that halves the time and saves memory.
    """
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = found.ids
    return ids


def _alternation(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted((t for t in texts if t), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _splits_cleanly(document: dict[str, object], added: Iterable[AddedToken]) -> bool:
    """Whether the text between two added tokens is encoded without regard to its neighbours."""
    if any(t.lstrip or t.rstrip or t.single_word for t in added):
        return False
    kinds = orjson.dumps([document.get("pre_tokenizer"), document.get("normalizer")])
    return (
        b'"ByteLevel"' in kinds
        and b'"add_prefix_space":true' not in kinds
        and b'"Prepend"' not in kinds
        and b'"Metaspace"' not in kinds
    )


def _most_characters_a_token(document: dict[str, Any], splits_cleanly: bool) -> int | None:
    normalizer, model = document.get("normalizer"), document.get("model") or {}
    composes = normalizer == {"type": "NFC"}
    is_sure = (
        b'"ByteLevel"' in orjson.dumps(document.get("decoder"))
        and splits_cleanly
        and b'"Removed"' not in orjson.dumps(document.get("pre_tokenizer"))
        and model.get("type") == "BPE"
        and (composes or normalizer in (None, {"type": "Sequence", "normalizers": []}))
    )
    if not is_sure:
        return None
    added = [token["content"] for token in document.get("added_tokens") or ()]
    return max(map(len, (*model["vocab"], *added))) * (_COMPOSED if composes else 1)


def _normalizes(document: dict[str, Any]) -> bool:
    """Whether text is changed (case, width, accents) before its tokens are looked for."""
    normalizer = document.get("normalizer")
    return normalizer is not None and normalizer.get("normalizers") != []


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return stand_ins | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()
