"""Code blocks of our pages, and how each kind is checked."""

import ast
import inspect
import linecache
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import click

from areal_sdk.cli.main import cli

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if match["language"] == language:
            line = text.count("\n", 0, match.start()) + 2
            yield Block(page, line, language, match["code"])


async def execute(block: Block, namespace: dict[str, Any]) -> None:
    """Run Python as it stands, top-level `await` included."""
    source = "\n" * (block.line - 1) + block.code  # errors point into the page
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: CodeType = compile(source, str(block.page), "exec", flags=flags, dont_inherit=True)
    linecache.checkcache(str(block.page))
    result = eval(code, namespace)
    if inspect.isawaitable(result):
        await result


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each `areal-sdk ...` line of the page's plain blocks, with where it stands."""
    for block in blocks(page, ""):
        for number, line in enumerate(block.code.splitlines()):
            if not line.startswith("areal-sdk ") or "[OPTIONS]" in line:
                continue
            words = shlex.split(line, comments=True)
            yield f"{page.relative_to(ROOT)}:{block.line + number}", words[1:]


HELP = ("--help", "--version", "--debug")


def _takes_options(group: click.Group, words: list[str]) -> bool:
    """Whether the group itself is called, as `areal-sdk plugins` or `areal-sdk init --from-areal`."""
    if not words:
        return group.invoke_without_command
    return group.invoke_without_command and words[0] not in HELP and words[0].startswith("--")


def parse_command(words: list[str]) -> None:
    """Click's own parser; UsageError for a command, option or argument that does not exist."""
    command: click.Command = cli
    context = click.Context(cli, info_name="areal-sdk")
    while isinstance(command, click.Group) and not _takes_options(command, words):
        if words[0] in HELP:
            return
        with context.scope(cleanup=False):  # plugins bring commands
            name, child, words = command.resolve_command(context, words)
        assert child is not None
        command, context = child, click.Context(child, info_name=name, parent=context)
    command.parse_args(context, words)
