"""Tables whose keys are names: options of the agent and of plugins, and the secrets in them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.config.keys import JSON, join_key, leaves
from areal_sdk.config.sections.base import Section, sections_in
from areal_sdk.config.sections.learning import AlgorithmSection, TrainerSection
from areal_sdk.config.sections.services import ClusterSection, EngineSection
from areal_sdk.errors import ConfigError

REMOVED = "(removed)"
"""The text that run directories store in the place of a secret."""


_SECTIONS_WITH_TABLES: Mapping[str, type[Section]] = {
    "cluster": ClusterSection,
    "engine": EngineSection,
    "trainer": TrainerSection,
    "algorithm": AlgorithmSection,
}
"""Sections in which a table, such as `[engine.NAME]`, has the options of NAME, unless the section declares the table."""


def gather_options(values: JSON) -> JSON:
    """Accept `[reward.NAME]`, `[env.NAME]`, `[tasks.NAME]`, `[engine.NAME]`, `[trainer.NAME]`,
    `[algorithm.NAME]`, `[cluster.NAME]`, `[observer.NAME]` and `[agent]` tables as `options`.

    A reward's `weight` is ours, the rest is the plugin's. Naming the table of a reward or an observer selects it.
    """
    options = {name: dict(table) for name, table in _table(values.pop("options", {}), "options")}
    values = {**values, "rewards": dict(_given(values.get("rewards", {}), "rewards"))}
    _gather_rewards(values, options)
    _gather_observers(values, options)
    _gather_named(values, options, "env", what="the environment to play")
    _gather_named(values, options, "tasks", what="the dataset", is_optional=True)
    for section in _SECTIONS_WITH_TABLES:
        _gather_inside(values, options, section)
    _gather_agent(values, options)
    return {**values, "options": options}


def as_written(settings: JSON) -> JSON:
    """Settings with their options in the tables that people write: what `gather_options` reads."""
    values = dict(settings)
    options = {name: table for name, table in values.pop("options", {}).items() if table}
    if rewards := values.pop("rewards", {}):
        values["reward"] = {
            name: {"weight": weight, **options.pop(f"reward.{name}", {})}
            for name, weight in rewards.items()
        }
    if observers := values.pop("observers", ()):
        values["observer"] = {name: options.pop(f"observer.{name}", {}) for name in observers}
    if "agent" in options:
        values["agent"] = {"name": values.get("agent", ""), **options.pop("agent")}
    for key in ("env", "tasks"):
        tables = {name: options.pop(name) for name in list(options) if name.startswith(f"{key}.")}
        inside = {name.removeprefix(f"{key}."): table for name, table in tables.items()}
        named = {"name": values[key]} if values.get(key) else {}
        if inside:
            values[key] = {**named, **inside}
    for table in list(options):
        section, _, name = table.partition(".")
        if section in _SECTIONS_WITH_TABLES:
            values[section] = {**values.get(section, {}), name: options.pop(table)}
    return {**values, "options": options} if options else values


def _gather_rewards(values: JSON, options: dict[str, JSON]) -> None:
    rewards = values["rewards"]
    for name, table in _table(values.pop("reward", {}), "reward"):
        table = dict(table)
        rewards[name] = table.pop("weight", rewards.get(name, 1.0))
        options[f"reward.{name}"] = options.get(f"reward.{name}", {}) | table


def _gather_observers(values: JSON, options: dict[str, JSON]) -> None:
    observers = values.get("observers", ())
    if not isinstance(observers, Sequence) or isinstance(observers, str):
        raise ConfigError(f'observers = {observers!r}: give a list of names, such as ["wandb"]')
    names = list(observers)
    for name, table in _table(values.pop("observer", {}), "observer"):
        options[f"observer.{name}"] = options.get(f"observer.{name}", {}) | dict(table)
        names.append(name)
    if names:
        values["observers"] = list(dict.fromkeys(names))


def _gather_named(
    values: JSON, options: dict[str, JSON], key: str, *, what: str, is_optional: bool = False
) -> None:
    """Move the options in `values[key]`, which is a name or a table with a name and options, into `options`."""
    table = values.get(key)
    if not isinstance(table, dict):
        return
    table = dict(table)
    name = table.pop("name", None)
    if name is None and not is_optional:
        name = next(iter(table)) if len(table) == 1 else None
        if name is None:
            raise ConfigError(f'name {what}: [{key}] name = "..."')
    options.update({f"{key}.{inner}": dict(given) for inner, given in _table(table, key)})
    if name is None:
        del values[key]
    else:
        values[key] = name


def _gather_inside(values: JSON, options: dict[str, JSON], section: str) -> None:
    """Move the tables of items, such as `[engine.NAME]`, out of `section` into `options`. Tables that the section
    itself declares, such as `[trainer.lora]`, stay."""
    inside = values.get(section)
    if not isinstance(inside, dict):
        return
    own = sections_in(_SECTIONS_WITH_TABLES[section])
    tables = {k: v for k, v in inside.items() if isinstance(v, dict) and k not in own}
    values[section] = {k: v for k, v in inside.items() if k not in tables}
    for key, table in tables.items():
        options[f"{section}.{key}"] = options.get(f"{section}.{key}", {}) | table


def _gather_agent(values: JSON, options: dict[str, JSON]) -> None:
    agent = values.get("agent")
    if not isinstance(agent, dict):
        return
    agent = dict(agent)
    values["agent"] = agent.pop("name", "")
    options["agent"] = options.get("agent", {}) | agent


def refuse_lost_secrets(values: JSON) -> None:
    """Refuse the text that a run directory stores in place of a secret: it must not be used as the secret."""
    gateway = values.get("gateway")
    if isinstance(gateway, dict) and gateway.get("admin_key") == REMOVED:
        del gateway["admin_key"]  # a new one is made up
    for parts, value in leaves(values):
        if isinstance(value, str) and REMOVED in value:
            key = written_key(parts)
            raise ConfigError(
                f"{key} is a secret, and run directories store no secrets: "
                f"give it again, with --set {shlex.quote(f'{key}=...')}"
            )


def written_key(parts: tuple[str, ...]) -> str:
    """The key as a user writes it. In `options`, one name such as "reward.judge" stands for two parts of the key."""
    if parts[0] != "options" or len(parts) < 3:
        return join_key(*parts)
    kind, _, name = parts[1].partition(".")
    return join_key(kind, *([name] if name else []), *parts[2:])


def _given(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} = {value!r}: that is a section, [{key}]")
    return value


def _table(value: object, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables inside section `key`, by name."""
    tables = _given(value, key)
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            written = join_key(key, name)
            raise ConfigError(f"{written} = {table!r}: options stand in a table, [{key}.NAME]")
    return list(tables.items())
