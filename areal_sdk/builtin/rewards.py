"""Rewards that compare an episode's final text with the answer its task carries.

A task without an answer, or with a blank one, is a mistake in the data: an error, and not a zero or, for silence, a one.
"""

import re

from areal_sdk.builtin.number import ends_a_list, last_number, only_number
from areal_sdk.types import Episode


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

    `1,000`, `1 000`, `0.5`, `1/2`, `5e-1`, `5 x 10^{-1}`, `2^10`, `-$5`, `25 cm^2` and the minus sign U+2212 are
    read; of a list such as `1,2,3` the last number counts. A number that is a part of an expression (`2 * 3`,
    `x - 3`, `1/2x`, `x^2`) is no answer. The answer in the data must be one number and nothing else but a unit.
    `tolerance` is relative to the answer. If the answer is 0, it is absolute.
    """
    answer = _answer(episode, field)
    if ends_a_list(answer):
        raise ValueError(
            f"task {episode.task.id!r}: data[{field!r}] is a list, {answer!r:.80}: give one number, or take "
            "the reward exact_match"
        )
    expected = only_number(answer)
    if expected is None:
        raise ValueError(
            f"task {episode.task.id!r}: data[{field!r}] is not a number: {answer!r:.80}. Leave "
            "only the number there; rewards of areal-sdk-math also read solutions that end in `#### 42`"
        )
    said = last_number(episode.final_text)
    if said is None:
        return 0.0  # the model's output, not a fault
    return float(abs(said - expected) <= tolerance * (abs(expected) or 1.0))


def _answer(episode: Episode, field: str) -> str:
    found = episode.task.data.get(field)
    if found is not None and (answer := str(found).strip()):
        return answer
    known = ", ".join(sorted(episode.task.data)) or "nothing"
    raise ValueError(
        f"task {episode.task.id!r} has no data[{field!r}] to compare with; it has: {known}; to "
        f"rename one: --set fields.{field}=COLUMN"
    )
