"""The settings of a run, for packages that write settings, such as a translator of another project's files, and for
commands that read them.

Settings are values by dotted key, as `--set` takes them: `{"rollout.batch": 64, "algorithm.dapo.clip_low": 0.2}`.
`read_settings` gives them as sections, which `areal_sdk.evaluate` and `train` take.
"""

from collections.abc import Mapping
from typing import Any

import tomli_w
from pydantic import ValidationError

from areal_sdk.algorithms.algorithm import make_algorithm
from areal_sdk.config import explain, parse_config, read_settings
from areal_sdk.config.keys import assign, join_key
from areal_sdk.engine import ConfiguredEngine
from areal_sdk.errors import ConfigError
from areal_sdk.plugins import list_options, load_plugins, validate_options

__all__ = ["SettingsChecker", "as_toml", "join_key", "read_settings"]

JSON = Any


class SettingsChecker:
    """Knows the settings of the core and those of the installed plugins.

    >>> SettingsChecker().check({"rollout.batch": 64, "algorithm.dapo.clip_low": -1.0})
    Traceback (most recent call last):
        ...
    areal_sdk.errors.ConfigError: [algorithm.dapo] clip_low = -1.0: input should be greater than 0
    """

    def __init__(self) -> None:
        self._plugins = load_plugins()

    def algorithm_options(self, name: str) -> list[str]:
        """The names of the settings in `[algorithm.NAME]`."""
        return [option.name for option in list_options(self._plugins.algorithms.get(name))]

    def check(self, settings: Mapping[str, JSON]) -> None:
        """Raise ConfigError for a value that its setting cannot have, and for settings that contradict each other.

        Checked are the sections, and the tables of algorithms and engines. If `algorithm.name` is among the
        settings, its options must also go together.
        """
        config = parse_config(_as_tables(settings))
        for table, options in config.options.items():
            kind, _, name = table.partition(".")
            if kind == "algorithm":
                validate_options(self._plugins.algorithms.get(name), options, table=table)
            elif kind == "engine":
                self._check_engine(name, options, table=table)
        if "algorithm.name" in settings:
            name = config.algorithm.name
            options = config.options.get(f"algorithm.{name}", {})
            make_algorithm(name, self._plugins.algorithms.get(name), options)

    def _check_engine(self, name: str, options: Mapping[str, JSON], *, table: str) -> None:
        engine = self._plugins.engines.get(name)
        if not issubclass(engine, ConfiguredEngine) or engine.table is None:
            return
        try:
            engine.table.model_validate(dict(options))
        except ValidationError as exc:
            raise ConfigError(f"{table}: {explain(exc, engine.table)}") from None


def as_toml(settings: Mapping[str, JSON]) -> str:
    """The settings as the text of a file for `--config`.

    >>> print(as_toml({"run.seed": 7, "run.steps": 20}))
    [run]
    seed = 7
    steps = 20
    <BLANKLINE>
    """
    return tomli_w.dumps(_as_tables(settings))


def _as_tables(settings: Mapping[str, JSON]) -> dict[str, JSON]:
    values: dict[str, JSON] = {}
    for key, value in settings.items():
        assign(values, key, value)
    return values
