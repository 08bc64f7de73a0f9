"""The score of an answer: that of the family, except where reasoning-gym 0.1.25 accepts a wrong one."""

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from areal_sdk_reasoning_gym.families import dataset, refuse_unscorable
from areal_sdk_reasoning_gym.formulas import is_arithmetic, is_formula, is_literal

Data = Mapping[str, Any]
"""The data of a task of the dataset `reasoning_gym`."""


def score(said: str, data: Data) -> float:
    """The score from 0.0 to 1.0. An exception means that the task is broken, not that the answer is
    bad."""
    refuse_unscorable(data["family"])
    form = FORMS.get(data["family"])
    if form is not None and not form.fullmatch(said.strip()):
        return 0.0
    scorer = _scorer(data)
    accepts = ACCEPTED.get(data["family"])
    if accepts is not None and not accepts(said, data):
        return 0.0
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


def _scorer(data: Data) -> Any:
    return dataset(data["family"], json.dumps(data["parameters"]))


def _is_no_longer(said: str, data: Data) -> bool:
    return len(said) <= len(data["answer"])


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


def _has_the_sign(said: str, data: Data) -> bool:
    """The library reads -390 as 390."""
    number = re.search(r"([-\u2212]\s*)?[0-9]", said)
    return number is not None and bool(number[1]) == str(data["answer"]).startswith("-")


def _has_the_dashes(said: str, data: Data) -> bool:
    """The library reads -00:11 as 00:11."""
    return said.count("-") == str(data["answer"]).count("-")


def _has_as_many_words(said: str, data: Data) -> bool:
    """The library stops reading at the last word of the answer."""
    return len(said.split()) <= len(str(data["answer"]).split())


def _has_as_many_items(said: str, data: Data) -> bool:
    """The same for a list with commas."""
    return said.count(",") <= str(data["answer"]).count(",")


def _names_each_once(said: str, data: Data) -> bool:
    """The library looks for names before roles, and drops all other words, such as `not`."""
    words = re.sub(r"[.,()]", " ", said.lower()).split()
    told = [word for word in words if word not in ("is", "a", "an", "and")]
    return len(told) == 2 * len(data["metadata"]["names"])


_NUMBER = r"[-+]?\d{1,30}(?:\.\d{1,30})?"
FORMS: Mapping[str, re.Pattern[str]] = {
    family: re.compile(form)
    for family, form in {
        "advanced_geometry": rf"{_NUMBER}\s*\u00b0?|\(?\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\)?",
        "coin_flip": rf"{_NUMBER}(?:[eE][-+]?\d{{1,2}})?|\d{{1,30}}\s*/\s*\d{{1,30}}",
        "fraction_simplification": (
            r"\$*\s*(?:\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d+\s*/\s*\d+)\s*\$*"
        ),
        "gsm_symbolic": r"\D*\d+(?:\.\d+)?\D*",
        "kakurasu": r"[01\s,\[\]]+",
        "polynomial_equations": rf"(?:\"\"|'')?|{_NUMBER}(?:\s*,\s*{_NUMBER})*",
        "quantum_lock": r"[A-Ca-c\s,\u2192>-]+",
        "sokoban": r"[LDUR\s]+",
        "survo": r"[\d\s]+",
        "time_intervals": r"-?(?:\d+\s*days?)?[,\s]*(?:-?\d+:\d+(?::\d+(?:\.\d+)?)?)?",
    }.items()
}
"""The form of the answers of these families. The library gives the full score to a right answer
with anything around it: a model that guesses could add every other guess."""

ACCEPTED: Mapping[str, Callable[[str, Data], bool]] = {
    "binary_matrix": is_literal,
    "countdown": is_arithmetic,
    "intermediate_integration": is_formula,
    "letter_jumble": _has_as_many_words,
    "n_queens": is_literal,
    "polynomial_multiplication": is_formula,
    "puzzle24": is_arithmetic,
    "simple_integration": is_formula,
    "spell_backward": _is_no_longer,
    "spiral_matrix": is_literal,
    "string_insertion": is_literal,
    "word_sorting": _has_as_many_items,
}
"""Asked before the library sees the answer. Families of `is_...` evaluate it as Python; of the others the
library gives the score of a beginning to whatever follows it."""

CONFIRMATIONS: Mapping[str, Callable[[str, Data], bool]] = {
    "coin_flip": _same_number,
    "complex_arithmetic": _is_number,
    "game_of_life_halting": _same_word,
    "gsm_symbolic": _has_the_sign,
    "knights_knaves": _names_each_once,
    "puzzle24": _uses_the_numbers,
    "time_intervals": _has_the_dashes,
}
"""Asked before a full score of these families counts; a model would find and exploit the gap."""
