"""The score of an answer: that of the family, except where reasoning-gym 0.1.25 accepts a wrong one."""

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from areal_sdk_reasoning_gym.families import dataset

Data = Mapping[str, Any]
"""The data of a task of the dataset `reasoning_gym`."""


def score(said: str, data: Data) -> float:
    """From 0.0 to 1.0. An exception means that the task is broken, not that the answer is bad."""
    scorer = dataset(data["family"], json.dumps(data["parameters"]))
    entry = {name: data[name] for name in ("question", "answer", "metadata")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parsing what a model wrote
        try:
            reached = float(scorer.score_answer(said, entry))
        except Exception:  # noqa: BLE001 - attributed: to the answer, or it is raised again
            # The library's parsers raise on what they cannot read. The same call with the known
            # answer tells a bad answer from a broken task, which must not look like a 0.0.
            scorer.score_answer(data["answer"], entry)
            return 0.0
    if not math.isfinite(reached):
        return 0.0
    confirms = CONFIRMATIONS.get(data["family"])
    if reached >= 1.0 and confirms is not None and not confirms(said, data):
        return 0.0
    return min(1.0, max(0.0, reached))


def _same_word(said: str, data: Data) -> bool:
    """The library takes any text for True."""
    return said.strip().lower() == str(data["answer"]).lower()


def _same_number(said: str, data: Data) -> bool:
    """The library gives the full score to a prefix of the digits, such as 0 for 0.25."""
    close = Fraction(said.replace(",", "")) - Fraction(data["answer"])
    return abs(close) <= Fraction(1, 10_000)


def _is_number(said: str, _: Data) -> bool:
    """The library takes nan for any number."""
    return "nan" not in said.lower()


def _uses_the_numbers(said: str, data: Data) -> bool:
    """The library accepts 24 made of other numbers."""
    used = sorted(int(number) for number in re.findall(r"[0-9]+", said))
    return used == sorted(data["metadata"]["numbers"])


CONFIRMATIONS: Mapping[str, Callable[[str, Data], bool]] = {
    "coin_flip": _same_number,
    "complex_arithmetic": _is_number,
    "game_of_life_halting": _same_word,
    "puzzle24": _uses_the_numbers,
}
"""Asked before a full score of these families counts; a model would find and exploit the gap."""
