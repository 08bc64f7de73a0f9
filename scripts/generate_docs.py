"""Writes the pages that are made from the code: docs/cli.md and docs/config.md. `make docs`."""

import inspect
import json
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from areal_sdk.algorithms import Algorithm, presets
from areal_sdk.builtin import ALGORITHMS
from areal_sdk.cli.main import COMMANDS, cli
from areal_sdk.config import Config, MixtureSection, PolicySection, sections_in
from areal_sdk.config.keys import join_key
from areal_sdk.errors.packages import PACKAGES
from areal_sdk.plugins import list_options
from areal_sdk_sglang.settings import SGLangSection

DOCS = Path(__file__).parent.parent / "docs"
NOTE = "<!-- Made by `make docs` from the code: do not edit. -->"


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {"cli.md": "\n".join(_cli()), "config.md": "\n".join(_config())}


def _cli() -> Iterator[str]:
    yield f"# The command line\n\n{NOTE}\n"
    yield "Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line. An error is one line on"
    yield "stderr; `areal-sdk --debug ...` shows tracebacks.\n"
    yield "Ctrl-C and SIGTERM: a command that has an end of its own, such as `train` or `eval`, exits with 1, since it"
    yield "was not done. A server has none: `serve` exits with 0, also with `--learn`, which saves its weights first.\n"
    with click.Context(cli, info_name="areal-sdk") as context:
        for name in COMMANDS:
            yield from _command_of(name, context)
        for package in PACKAGES:
            for name in package.brings.get("command", ()):
                yield from _command_of(name, context)
                yield f"The command comes with {package.name}: `{package.install}`.\n"


def _command_of(name: str, parent: click.Context) -> Iterator[str]:
    command = cli.get_command(parent, name)
    assert command is not None
    return _command(command, click.Context(command, info_name=name, parent=parent))


def _command(command: click.Command, context: click.Context, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} `{context.command_path}`\n"
    yield f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield _paragraphs(command.help or "") + "\n"
    options = [p for p in command.params if isinstance(p, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    if rows:
        yield "| option | |\n|---|---|"
        for names, help_text in rows:
            yield f"| `{_cell(names)}` | {_cell(help_text)} |"
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(
                child, click.Context(child, info_name=name, parent=context), level + 1
            )


def _paragraphs(help_text: str) -> str:
    """A command's help; paragraphs that click must not wrap become code blocks."""
    parts = []
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraph = "```\n" + paragraph.removeprefix("\b\n") + "\n```"
        parts.append(paragraph)
    return "\n\n".join(parts)


def _config() -> Iterator[str]:
    yield f"# Settings\n\n{NOTE}\n"
    yield "Write settings in a TOML file and pass the file with `--config`, or pass single settings with"
    yield "`--set section.key=value`. A command's own flags win over `--set`, and `--set` wins over the file. An"
    yield "unknown key is an error. A relative path, also one in a config file, begins at the current directory, not at"
    yield "the directory of the file.\n"
    yield "The tables `[agent]`, `[reward.NAME]`, `[env.NAME]`, `[tasks.NAME]`, `[engine.NAME]`, `[trainer.NAME]` and"
    yield "`[algorithm.NAME]` hold the options of the agent and of plugins. In `[reward.NAME]`, `weight` is the weight"
    yield "of that reward in the sum.\n"
    sections = sections_in(Config)
    yield from _table("At the top", Config, leave_out={*sections, "options"})
    yield from _table("`[[mixture]]`", MixtureSection)
    yield from _table("`[policy.NAME]`", PolicySection)
    for name, model in sections.items():
        inside = sections_in(model)
        yield from _table(f"`[{name}]`", model, leave_out=inside)
        for table, own in inside.items():
            yield from _table(f"`[{name}.{table}]`", own)
        if name == "engine":
            yield from _table("`[engine.sglang]`", SGLangSection)
        if name == "algorithm":
            for name, preset in ALGORITHMS.items():
                yield from _preset_table(name, getattr(presets, preset))


def _preset_table(name: str, preset: Callable[..., Algorithm]) -> Iterator[str]:
    """The options of a built-in algorithm: the keyword parameters of its preset."""
    yield f"## `[{join_key('algorithm', name)}]`\n"
    yield f"{inspect.getdoc(preset)}\n"
    yield "| key | type | default | |\n|---|---|---|---|"
    for option in list_options(preset):
        _, *notes = get_args(option.annotation)
        described = " ".join(note.description for note in notes)
        annotation = _type_name(option.annotation)
        yield f"| `{option.name}` | {_cell(annotation)} | `{json.dumps(option.default)}` | {described} |"
    yield ""


def _table(title: str, model: type[BaseModel], leave_out: Collection[str] = ()) -> Iterator[str]:
    yield f"## {title}\n"
    if model is not Config:
        yield f"{inspect.getdoc(model)}\n"
    yield "| key | type | default | |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        annotation = _type_name(field.annotation)
        described = " ".join((field.description or "").split())
        yield f"| `{name}` | {_cell(annotation)} | {_default(field)} | {_cell(described)} |"
    yield ""


def _type_name(annotation: Any) -> str:
    """`int`, `"a"` or `"b"`, ...: what a person may write; None is what leaving it out means."""
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(_type_name(a) for a in arguments if a is not NoneType)
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{json.dumps(choice)}`" for choice in annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin is tuple and inspect.isclass(arguments[0]) and issubclass(arguments[0], BaseModel):
        return "tables"
    name = inspect.formatannotation(annotation)
    return f"`{name.rpartition('.')[2] if origin is None else name}`"


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, Path):
        value = str(value)
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text.rstrip() + "\n")
        print(f"wrote docs/{name}")
