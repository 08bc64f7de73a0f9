"""One checked `Config`, made from a TOML file, `--set` and flags; errors name key, value and cure."""

import difflib
import os
import shlex
import tomllib
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from areal_sdk.config.keys import JSON, assign, leaves, parse_value
from areal_sdk.config.root import Config
from areal_sdk.config.tables import gather_options, refuse_lost_secrets
from areal_sdk.errors import ConfigError, no_such_file
from areal_sdk.errors.packages import how_to_install

_NEAR = 0.7
"""Similarity (of `difflib`, at most 1) of two names that only a slip of the keyboard tells apart."""


def load_config(
    *,
    file: Path | None = None,
    settings: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The checked settings: those that `read_settings` reads, and defaults for all others."""
    return parse_config(read_settings(file, settings, overrides))


def read_settings(
    file: Path | None, settings: Iterable[str] = (), overrides: Mapping[str, Any] | None = None
) -> JSON:
    """A TOML file, `a.b=c` settings and a command's flags (dotted keys) in one, not checked yet."""
    values: JSON = read_toml(file) if file else {}
    for setting in settings:
        key, separator, raw = setting.partition("=")
        if not separator:
            raise ConfigError(f"--set {setting!r}: write it as section.key=value")
        assign(values, key.strip(), parse_value(raw))
    for key, value in (overrides or {}).items():
        assign(values, key, value)
    return values


def parse_config(values: Mapping[str, Any]) -> Config:
    gathered = gather_options(dict(values))
    refuse_lost_secrets(gathered)
    try:
        return Config.model_validate(gathered)
    except ValidationError as exc:
        raise ConfigError(explain(exc, Config)) from None


def with_absolute_paths(
    config: Config, *, built_in: Container[str], tables: Mapping[str, type[BaseModel]]
) -> Config:
    """The same settings for a reader in another directory.

    `tables`: models of tables in `config.options`, whose types say which options are paths. A value that names no
    file here is left alone: a module, a plugin's name, a hub id, a `built_in` model.
    """
    agent, separator, name = config.agent.partition("::")
    sft, serve, finetune = config.sft, config.serve, config.finetune
    options = {table: dict(values) for table, values in config.options.items()}
    for written, model in tables.items():
        table = options.get(written, {})
        table.update({key: _absolute(table[key]) for key in _path_fields(model) if key in table})
    changed = {
        "command": _with_absolute_words(config.command),
        "agent": _absolute(agent) + separator + name if agent.endswith(".py") else config.agent,
        "model": config.model if config.model in built_in else _absolute(config.model),
        "tasks": _absolute(config.tasks),
        "eval_tasks": _absolute(config.eval_tasks),
        "mixture": tuple(
            part.model_copy(
                update={
                    "tasks": _absolute(part.tasks),
                    "eval_tasks": _absolute(part.eval_tasks),
                    "name": part.label,
                }
            )
            for part in config.mixture
        ),
        "policy": {
            name: policy.model_copy(update={"frozen": _absolute(policy.frozen)})
            for name, policy in config.policy.items()
        },
        "plugins": tuple(map(_absolute, config.plugins)),
        "init_from": _absolute(config.init_from),
        "finetune": finetune.model_copy(
            update={
                "data": tuple(map(_absolute, finetune.data)),
                "eval_data": tuple(map(_absolute, finetune.eval_data)),
            }
        ),
        "sft": sft.model_copy(update={"demonstrations": _absolute(sft.demonstrations)}),
        "serve": serve.model_copy(
            update={"users": _absolute(serve.users), "keys": _absolute(serve.keys)}
        ),
        "options": options,
    }
    return config.model_copy(update=changed)


def _path_fields(model: type[BaseModel]) -> list[str]:
    fields = model.model_fields.items()
    return [
        name for name, field in fields if Path in (field.annotation, *get_args(field.annotation))
    ]


PathLike = TypeVar("PathLike", str, Path, str | None, Path | None)


def _absolute(path: PathLike) -> PathLike:
    if path is None:
        return path
    whole = Path(path).expanduser()
    whole = whole.resolve() if ".." in whole.parts else whole.absolute()  # one file, one spelling
    return type(path)(whole) if whole.exists() else path


def _with_absolute_words(command: str | None) -> str | None:
    """The command, with whole paths for its files."""
    if command is None:
        return None
    with suppress(ValueError):  # quotes that are not closed: whoever runs it says so
        words = shlex.split(command)
        whole = [_absolute(word) if os.path.isfile(word) else word for word in words]
        if words and os.sep not in words[0]:
            whole[0] = words[0]  # sought in PATH, also where a file here is called so
        return command if whole == words else shlex.join(whole)
    return command


def read_toml(path: Path) -> JSON:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_such_file(path, "config file") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for the first problem: the field, its value, and the cure."""
    first, *others = error.errors(include_url=False)
    alike = [other["msg"] for other in others if _is_of_same_value(first, other)]
    where = ".".join(str(part) for part in first["loc"][: -1 if alike else None])
    if first["type"] == "extra_forbidden":
        if isinstance(first["input"], Mapping):  # an unknown section: what was set in it says more
            inside, _ = next(leaves(first["input"]), ((), None))
            where = ".".join([where, *inside])
        if cure := how_to_install("setting", where):
            return cure
        known = [*known_keys(model), *_keys_of_table(model, first["loc"])]
        return f"unknown setting {where!r}{_meant(where, known)}"
    ways = [one.removeprefix("Input should be ") for one in alike]
    message = ", or ".join([first["msg"].removeprefix("Value error, "), *ways])
    if not where:
        return message
    return f"{where} = {first['input']!r}: {message[0].lower()}{message[1:]}"


def _is_of_same_value(one: ErrorDetails, other: ErrorDetails) -> bool:
    """Whether two errors are about one value, because its setting may have two forms and the value has neither.

    In this case pydantic adds the name of the form to the place of the error. No user knows that name.
    """
    return one["loc"][:-1] == other["loc"][:-1] and one["input"] is other["input"]


def _meant(key: str, known: list[str]) -> str:
    """The setting whose spelling is closest to `key`; else one of that name elsewhere; else its neighbours.

    Section and name are compared one by one: a section that is right must not make a wrong name look right.

    >>> _meant("run.step", ["run.steps", "model"])
    ": did you mean 'run.steps'?"
    >>> _meant("run.lora", ["run.dir", "run.steps", "model"])
    '; known in run: dir, steps'
    >>> _meant("trainer.lora.rnk", ["trainer.ranks", "trainer.lora.rank"])
    ": did you mean 'trainer.lora.rank'?"
    """
    section, _, name = key.rpartition(".")
    sections = sorted({other.rpartition(".")[0] for other in known if "." in other})
    inside: list[str] = []
    whole = [other for other in known if section or "." not in other]
    if near := difflib.get_close_matches(section, sections, n=1, cutoff=_NEAR):
        inside = [
            other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == near[0]
        ]
        if spelt := difflib.get_close_matches(name, inside, n=1, cutoff=_NEAR):
            return f": did you mean {f'{near[0]}.{spelt[0]}'!r}?"
    elif spelt := difflib.get_close_matches(key, [*whole, *sections], n=1, cutoff=_NEAR):
        return f": did you mean {spelt[0]!r}?"
    if named := [repr(other) for other in known if other.rpartition(".")[2] == name]:
        return f": did you mean {' or '.join(named)}?"
    if inside:
        return f"; known in {near[0]}: {', '.join(inside)}"
    return f"; known sections: {', '.join(sections)}" if section else f"; known: {', '.join(known)}"


def _keys_of_table(model: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """Keys that a table of a list accepts, such as `mixture.0.tasks`, if `where` is in one."""
    name, *rest = where
    if not rest or not isinstance(rest[0], int):
        return []
    table = get_args(model.model_fields[str(name)].annotation)[0]
    return known_keys(table, f"{name}.{rest[0]}.")


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key a model accepts."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys += known_keys(annotation, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return keys
