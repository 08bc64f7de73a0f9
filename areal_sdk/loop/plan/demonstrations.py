"""Demonstrations for supervised warm-up: a file, or `demonstrations()` beside the agent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from areal_sdk.config import SftSection
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.plan.rows import (
    CONVERSATION,
    THOUGHTS,
    BadRowError,
    Conversation,
    Pair,
    read_conversations,
    to_conversation,
)
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Message

Row = TypeVar("Row", Conversation, Pair)

Remarks = dict[str, list[str]]
"""Remarks on rows, each with the rows that it is about."""

SYSTEM_READ = 'with a "system" column, which is the system message'
SYSTEM_LOST = 'with a "system" column, which is left out: the chat template has no place for it'
THOUGHTS_LOST = (
    f"with thoughts ({THOUGHTS[0]}), which are left out: the chat template has no place for them"
)


def load_demonstrations(section: SftSection, *, program: Program) -> list[Conversation]:
    """The conversations, each with at least one assistant message; none if `sft.steps` is 0."""
    if not section.steps:
        return []
    if section.demonstrations is not None:
        return read_conversations(Path(section.demonstrations))
    if program.demonstrations is None:
        raise ConfigError(
            f"sft.steps = {section.steps} needs demonstrations: set sft.demonstrations to a "
            f"file, or define `def demonstrations()` beside {program.name!r}"
        )
    what = f"demonstrations() of {program.name!r}"
    found = [
        _conversation(given, f"{what}, number {number}")
        for number, given in enumerate(program.demonstrations(), 1)
    ]
    if not found:
        raise ConfigError(f"{what}: no demonstrations")
    return found


def _conversation(given: Any, where: str) -> Conversation:
    """The conversation in `given`: a list of messages, or a mapping, as in a file, that may have tools too."""
    row = given if isinstance(given, Mapping) else {"messages": given}
    try:
        return to_conversation(row, where)
    except BadRowError as exc:
        raise ConfigError(f"{where}: {exc}; give a list of messages, or {CONVERSATION}") from None


def as_demonstrations(
    conversations: Iterable[Conversation], renderer: Renderer
) -> tuple[list[Demonstration], list[str]]:
    """The conversations in tokens, exactly as the gateway would render them, and notes about them."""
    remarks: Remarks = {}
    rows: list[Demonstration] = []
    for given in conversations:
        row = for_template(given, renderer, remarks)
        rows += to_demonstrations(row.messages, renderer, tools=row.tools)
    return rows, lines_of(remarks)


def for_template(row: Row, renderer: Renderer, remarks: Remarks) -> Row:
    """The row with its system message, if the template writes system messages. Adds a remark for each part that the
    template does not write."""
    said: tuple[tuple[Message, ...], ...] = ()
    if isinstance(row, Pair):
        said = (row.chosen, row.rejected)
    has_thoughts = any(m.get(THOUGHTS[0]) for part in (row.messages, *said) for m in part)
    if has_thoughts and not renderer.writes_reasoning:
        remarks.setdefault(THOUGHTS_LOST, []).append(row.where)
    if not row.system:
        return row
    why = SYSTEM_READ if renderer.writes_system else SYSTEM_LOST
    remarks.setdefault(why, []).append(row.where)
    if not renderer.writes_system:
        return row
    return replace(row, messages=({"role": "system", "content": row.system}, *row.messages))


def lines_of(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each remark, with the number of its rows and the first of them."""
    return [
        f"{counted(len(places), 'row')} {what}; first: {places[0]}"
        for what, places in remarks.items()
    ]
