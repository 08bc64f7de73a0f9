"""Tasks of one family or of a mixture, without an overlap between the splits."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from areal_sdk import ConfigError, Task
from areal_sdk.environment import is_held_out
from areal_sdk_reasoning_gym.families import (
    Entry,
    entries,
    family_names,
    has_level,
    parameters_of,
    refuse_unscorable,
)

ALL = "all"
MAX_DRAWS = 1000
"""Maximum number of questions in a row that belong to the other split."""


def tasks(
    split: str,
    *,
    families: str | list[str] = ALL,
    weights: dict[str, float] | None = None,
    difficulty: int | dict[str, int] | None = None,
    config: dict[str, dict[str, Any]] | None = None,
    count: int = 1000,
    eval_count: int = 100,
    held_out: float = 0.2,
    seed: int = 0,
) -> Iterator[Task]:
    """`count` tasks of the split `train`, or `eval_count` of another one.

    families: a name, several, or "all".
    weights: the share of a family in a mixture; 1.0 where none is given.
    difficulty: the level of every family, or of each by its name; None leaves the library's defaults.
        With "all" a level takes the families that have it.
    config: parameters by family, over those of the level.
    held_out: the share of all questions that belongs to evaluations. The text of a question decides, so
        no seed, count or other option brings a held-out question into training.
    """
    if not 0.0 < held_out < 1.0:
        raise ConfigError(f"held_out = {held_out}: give a share between 0 and 1, such as 0.2")
    chosen = _chosen(families, level=difficulty if isinstance(difficulty, int) else None)
    shares = _shares(chosen, weights or {})
    levels = difficulty if isinstance(difficulty, dict) else dict.fromkeys(chosen, difficulty)
    given = config or {}
    for option, table in (("difficulty", levels), ("config", given)):
        _refuse_others(option, table, chosen)
    parameters = {
        family: parameters_of(family, difficulty=levels.get(family), given=given.get(family, {}))
        for family in chosen
    }
    is_train = split == "train"
    order = random.Random(f"{seed} {split}")
    drawn = {
        family: _of_split(
            family,
            entries(family, parameters[family], seed=f"{seed} {split} {family}"),
            is_train=is_train,
            held_out=held_out,
        )
        for family in chosen
    }
    for number in range(count if is_train else eval_count):
        (family,) = order.choices(chosen, shares)
        made = next(drawn[family])
        data = {
            "question": made["question"],
            "answer": made["answer"],
            "family": family,
            "parameters": parameters[family],
            "metadata": made["metadata"],  # scoring reads it, and tells tuples from lists
        }
        yield Task(f"{family}-{split}-{seed}-{number}", data)


def _of_split(
    family: str, drawn: Iterator[Entry], *, is_train: bool, held_out: float
) -> Iterator[Entry]:
    """The entries that belong to the split."""
    num_others = 0
    for entry in drawn:
        if is_held_out(entry["question"], held_out) == is_train:
            num_others += 1
            if num_others < MAX_DRAWS:
                continue
            split = "training" if is_train else "evaluations"
            raise ConfigError(
                f"reasoning-gym's {family} has so few questions that {MAX_DRAWS} in a row are none "
                f"for {split} (held_out = {held_out}): leave the family out, make it harder, or "
                "change held_out"
            )
        num_others = 0
        yield entry


def _chosen(families: str | list[str], *, level: int | None) -> list[str]:
    known = family_names()
    if families == ALL and level is not None:
        known = [name for name in known if has_level(name, level)]
        if not known:
            raise ConfigError(f"difficulty = {level}: no family has this level")
    if families == ALL:
        return known
    names = [families] if isinstance(families, str) else families
    if not names:
        raise ConfigError('families = []: name at least one, or "all"')
    for name in names:
        refuse_unscorable(name)
        if name not in known:
            raise ConfigError(f"families: reasoning-gym has no {name!r}; it has {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"families = {names}: a name stands twice; use weights for shares")
    return names


def _shares(chosen: list[str], weights: Mapping[str, float]) -> list[float]:
    _refuse_others("weights", weights, chosen)
    shares = [weights.get(family, 1.0) for family in chosen]
    if min(shares) < 0 or not sum(shares):
        raise ConfigError(
            f"weights = {dict(weights)}: give shares of at least 0, one of them above"
        )
    return shares


def _refuse_others(option: str, table: Mapping[str, object], chosen: list[str]) -> None:
    """Raise ConfigError for a name that is not among the families: its value would have no effect."""
    if others := sorted(set(table) - set(chosen)):
        raise ConfigError(f"{option}: {others[0]!r} is not among the families of these tasks")
