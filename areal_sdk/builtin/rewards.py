"""Rewards that compare an episode's final text with the answer its task carries.

A task without an answer is a mistake in the data, so it is an error and not a zero.
"""

import math
import re

from areal_sdk.types import Episode

_MINUS = "\u2212"
_UNSIGNED = (
    r"(?:(?:(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
"""With a comma at each thousand or at none: 1,234,567 is one number, 1,2,3 and 12,34 are lists."""
_SIGN, _CURRENCY = f"[-+{_MINUS}]", r"\\?[$€£¥]"
_NUMBER = re.compile(rf"(?<![\w.]){_SIGN}?(?:{_CURRENCY})?{_UNSIGNED}(?: ?/ ?{_SIGN}?{_UNSIGNED})?")
_NO_PART = re.compile(rf"[, ]|{_CURRENCY}")
"""Of what is read, this says nothing about the value."""
_LIST_BEFORE = re.compile(r"\d,\s*\Z")


def exact_match(episode: Episode, *, field: str = "answer", ignore_case: bool = False) -> float:
    """1.0 when the final text is the answer, surrounding white space aside."""
    said, answer = episode.final_text.strip(), _answer(episode, field)
    return float(said.lower() == answer.lower() if ignore_case else said == answer)


def contains_answer(episode: Episode, *, field: str = "answer", ignore_case: bool = True) -> float:
    """1.0 when the final text has the answer in it, as a word of its own.

    A policy can learn to list many answers; prefer a reward that reads one.
    """
    answer = _answer(episode, field)
    flags = re.IGNORECASE if ignore_case else 0
    found = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", episode.final_text, flags)
    return float(found is not None)


def numeric_match(episode: Episode, *, field: str = "answer", tolerance: float = 1e-6) -> float:
    """1.0 when the last number of the final text equals the answer.

    `1,000`, `0.5`, `1/2`, `5e-1`, `-$5` and the minus sign U+2212 are read; of a list such as `1,2,3` the last
    number counts. `tolerance` is relative to the answer; where the answer is 0 it is the largest number.
    """
    answer = _answer(episode, field)
    expected = _number(answer)
    if expected is None:
        raise ValueError(
            f"task {episode.task.id!r}: data[{field!r}] is not a number: {answer!r:.80}"
        )
    if _is_list(answer):
        raise ValueError(
            f"task {episode.task.id!r}: data[{field!r}] is a list, {answer!r:.80}: give one number, or take "
            "the reward exact_match"
        )
    said = _number(episode.final_text)
    if said is None:
        return 0.0  # the model's output, not a fault
    return float(abs(said - expected) <= tolerance * (abs(expected) or 1.0))


def _answer(episode: Episode, field: str) -> str:
    try:
        return str(episode.task.data[field]).strip()
    except KeyError:
        known = ", ".join(sorted(episode.task.data)) or "nothing"
        raise ValueError(
            f"task {episode.task.id!r} has no data[{field!r}] to compare with; it has: {known}"
        ) from None


def _number(text: str) -> float | None:
    """The last number in `text`; None without one, and for one that is not finite.

    >>> _number("1,234,567"), _number("1,2,3"), _number("12,34"), _number("\u22125"), _number("1e999999999")
    (1234567.0, 3.0, 34.0, -5.0, None)
    """
    last = _last_number(text)
    if last is None:
        return None
    top, _, bottom = _NO_PART.sub("", last[0]).replace(_MINUS, "-").partition("/")
    if bottom and float(bottom) == 0.0:
        return None
    value = float(top) / float(bottom) if bottom else float(top)  # too large a number is infinite
    return value if math.isfinite(value) else None


def _is_list(text: str) -> bool:
    last = _last_number(text)
    return last is not None and _LIST_BEFORE.search(text, 0, last.start()) is not None


def _last_number(text: str) -> re.Match[str] | None:
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one is meant
        pass
    return found
