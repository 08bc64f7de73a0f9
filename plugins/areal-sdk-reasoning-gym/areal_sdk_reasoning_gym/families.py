"""The families of the installed reasoning-gym: names, levels of difficulty, parameters, entries."""

import functools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset

from areal_sdk import ConfigError

NOT_FAMILIES = ("composite",)
"""Mixtures of reasoning-gym itself; `families` with several names is ours."""

UNSCORABLE = {
    "propositional_logic": (
        "it gives the full score to a premise that is copied, made weaker, or joined to another one, and its "
        "questions do not say which conclusion they mean"
    )
}
"""Families whose score cannot tell a right answer from one that took no reasoning."""

BLOCK = 16

Entry = dict[str, Any]
"""A question with its answer and metadata, as reasoning-gym makes and scores it."""


def family_names() -> list[str]:
    return sorted(set(DATASETS) - set(NOT_FAMILIES) - set(UNSCORABLE))


def refuse_unscorable(family: str) -> None:
    if reason := UNSCORABLE.get(family):
        raise ConfigError(
            f"{family} of reasoning-gym cannot be scored: {reason}: leave the family out"
        )


def has_level(family: str, level: int) -> bool:
    """Whether a family has this level. A level of the library that contradicts its own family does not count."""
    try:
        parameters_of(family, difficulty=level, given={})
    except ConfigError:
        return False
    return True


def parameters_of(
    family: str, *, difficulty: int | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of a family: those of its level of difficulty, and over them the given ones.

    A level sets each attribute of the family's curriculum; an attribute with fewer levels stays at its
    highest.
    """
    parameters: dict[str, Any] = {}
    if difficulty is not None:
        parameters = _at_level(family, difficulty)
    known = {f.name for f in fields(DATASETS[family][1])} - {"seed", "size"}
    if unknown := sorted(set(given) - known):
        raise ConfigError(
            f"reasoning-gym's {family} has no parameter {unknown[0]!r}; known: "
            f"{', '.join(sorted(known))}"
        )
    parameters |= given
    try:
        dataset(family, json.dumps(parameters))
    except (AssertionError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"reasoning-gym refuses the parameters of {family}, {parameters}: {exc}"
        ) from exc
    return parameters


def entries(family: str, parameters: Mapping[str, Any], *, seed: str) -> Iterator[Entry]:
    """Entries without an end, the same for the same seed, however many are taken.

    They are made in blocks: some families read a file for each dataset, others make all entries of a
    dataset at once.
    """
    generator = random.Random(seed)
    while True:
        block = create_dataset(
            family, **{**parameters, "seed": generator.randrange(2**31), "size": BLOCK}
        )
        for index in range(BLOCK):
            yield block[index]


@functools.lru_cache(maxsize=256)
def dataset(family: str, parameters: str) -> Any:
    """The dataset that scores entries of these parameters (as JSON). It is made once a process."""
    return create_dataset(family, **{**json.loads(parameters), "seed": 0, "size": 1})


def _at_level(family: str, level: int) -> dict[str, Any]:
    if family not in CURRICULA:
        raise ConfigError(
            f"difficulty = {level}: reasoning-gym has no levels for {family}; set its parameters "
            f"instead, [tasks.reasoning_gym.config.{family}]"
        )
    curriculum = create_curriculum(family)
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if not 0 <= level <= highest:
        raise ConfigError(f"difficulty = {level}: {family} has the levels 0 to {highest}")
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
    made = vars(curriculum.generate_configuration())
    parameters: dict[str, Any] = {}
    for attribute in curriculum.attributes.values():
        for bound in ("field_name", "lower_field_name", "upper_field_name"):
            if field := getattr(attribute, bound, None):
                parameters[field] = made[field]
    return parameters
