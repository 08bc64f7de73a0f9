"""All keys of a file together: their outcomes, and the settings that they add up to."""

from collections.abc import Mapping
from dataclasses import dataclass

from areal_sdk.errors import ConfigError
from areal_sdk.settings import SettingsChecker, as_toml
from areal_sdk_from_areal.defaults import completed
from areal_sdk_from_areal.objective import ObjectiveKeys
from areal_sdk_from_areal.outcome import JSON, KeyOutcome, Keys, Kind, not_supported
from areal_sdk_from_areal.rules import outcome_of


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
        return as_toml(self.settings)


def translate(given: Keys) -> Translation:
    """The translation of these settings. ConfigError if the translated settings together are no configuration."""
    keys = completed(given)
    checker = SettingsChecker()
    objective = ObjectiveKeys(keys, checker)
    settings: dict[str, JSON] = {"algorithm.name": objective.preset}
    outcomes = {}
    for key, value in keys.items():
        outcome = objective.outcome(key, value) or outcome_of(key, value, keys)
        outcomes[key] = outcome = _valid(outcome, settings, checker)
        settings.update(outcome.settings)
    checker.check(settings)
    as_given = frozenset(key for key, value in given.items() if keys[key] == value)
    return Translation(outcomes, keys, as_given, settings)


def _valid(
    outcome: KeyOutcome, settings: Mapping[str, JSON], checker: SettingsChecker
) -> KeyOutcome:
    """`outcome`, unless areal-sdk refuses its value, or another key has said something else."""
    for key, value in outcome.settings.items():
        if settings.get(key, value) != value:
            return not_supported(f"another key made {key} = {settings[key]!r}")
        # A batch is made of whole groups, and the size of a group is another key.
        beside = {"rollout.group_size": 1} if key == "rollout.batch" else {}
        try:
            checker.check({key: value, **beside})
        except ConfigError as exc:
            return not_supported(str(exc))
    return outcome
