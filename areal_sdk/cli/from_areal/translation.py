"""All keys of a file together: their outcomes, and the settings that they add up to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from areal_sdk.algorithms import presets
from areal_sdk.algorithms.algorithm import make_algorithm
from areal_sdk.backends.sglang.settings import SGLangSection
from areal_sdk.builtin import ALGORITHMS
from areal_sdk.cli.from_areal.defaults import completed
from areal_sdk.cli.from_areal.objective import ObjectiveKeys
from areal_sdk.cli.from_areal.outcome import JSON, KeyOutcome, Keys, Kind, not_supported
from areal_sdk.cli.from_areal.rules import outcome_of
from areal_sdk.config import parse_config
from areal_sdk.config.keys import assign, split_key
from areal_sdk.errors import ConfigError
from areal_sdk.options import validate_options


@dataclass(frozen=True, slots=True)
class Translation:
    outcomes: Mapping[str, KeyOutcome]
    """Outcome of each key of the file, and of AReaL's defaults for keys that the file lacks."""
    keys: Keys
    """Keys of the file, together with these defaults."""
    given: frozenset[str]
    """The keys of the file."""
    settings: Mapping[str, JSON]
    """Dotted keys of areal-sdk."""

    def of_kind(self, kind: Kind) -> dict[str, KeyOutcome]:
        """Defaults are listed where they are more than a remark."""
        return {
            key: outcome
            for key, outcome in self.outcomes.items()
            if outcome.kind is kind and (key in self.given or kind is not Kind.NOT_APPLICABLE)
        }

    def toml(self) -> str:
        return tomli_w.dumps(_as_tables(self.settings))


def translate(given: Keys) -> Translation:
    """ConfigError where the settings together are no configuration."""
    keys = completed(given)
    objective = ObjectiveKeys(keys)
    settings: dict[str, JSON] = {"algorithm.name": objective.preset}
    outcomes = {}
    for key, value in keys.items():
        outcome = objective.outcome(key, value) or outcome_of(key, value, keys)
        outcomes[key] = outcome = _valid(outcome, settings)
        settings.update(outcome.settings)
    tables = _as_tables(settings)
    parse_config(tables)
    make_algorithm(
        objective.preset, _preset(objective.preset), tables["algorithm"].get(objective.preset, {})
    )
    as_given = frozenset(key for key, value in given.items() if keys[key] == value)
    return Translation(outcomes, keys, as_given, settings)


def _valid(outcome: KeyOutcome, settings: Mapping[str, JSON]) -> KeyOutcome:
    """`outcome`, unless areal-sdk refuses its value, or another key has said something else."""
    for key, value in outcome.settings.items():
        if settings.get(key, value) != value:
            return not_supported(f"another key made {key} = {settings[key]!r}")
        try:
            _check_one(key, value)
        except ConfigError as exc:
            return not_supported(str(exc))
    return outcome


def _check_one(key: str, value: JSON) -> None:
    """ConfigError for a value that a setting cannot have."""
    match split_key(key):
        case ["algorithm", preset, option]:
            validate_options(_preset(preset), {option: value}, table=f"algorithm.{preset}")
        case ["engine", _, option]:
            SGLangSection.read({option: value})
        case ["rollout", "batch"]:
            parse_config({"rollout": {"batch": value, "group_size": 1}})
        case _:
            parse_config(_as_tables({key: value}))


def _preset(name: str) -> Callable[..., object]:
    preset: Callable[..., object] = getattr(presets, ALGORITHMS[name])
    return preset


def _as_tables(settings: Mapping[str, JSON]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in settings.items():
        assign(values, key, value)
    return values
