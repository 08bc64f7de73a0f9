"""Rewards that compare an episode's final text with the answer its task carries.

A task without an answer is a mistake in the data, so it is an error and not a zero.
"""

import math
import re
from fractions import Fraction

from areal_sdk.types import Episode

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?")


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

    `1,000`, `0.5`, `1/2` and `5e-1` are read as numbers; `tolerance` is relative to the answer.
    """
    expected = _number(_answer(episode, field))
    if expected is None:
        raise ValueError(f"task {episode.task.id!r}: data[{field!r}] is not a number")
    said = _number(episode.final_text)
    if said is None:
        return 0.0  # the model's output, not a fault
    return float(math.isclose(said, expected, rel_tol=tolerance, abs_tol=tolerance))


def _answer(episode: Episode, field: str) -> str:
    try:
        return str(episode.task.data[field]).strip()
    except KeyError:
        known = ", ".join(sorted(episode.task.data)) or "nothing"
        raise ValueError(
            f"task {episode.task.id!r} has no data[{field!r}] to compare with; it has: {known}"
        ) from None


def _number(text: str) -> float | None:
    """The last number in `text`."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    last = numbers[-1].replace(",", "")
    try:
        numerator, _, denominator = last.partition("/")
        if denominator:
            return float(Fraction(numerator) / Fraction(denominator))
        return float(numerator)
    except (ZeroDivisionError, OverflowError):
        return None
