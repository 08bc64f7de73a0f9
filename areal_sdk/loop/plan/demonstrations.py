"""Demonstrations for supervised warm-up: a JSONL file, or `demonstrations()` beside the agent."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from areal_sdk.config import SftSection
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.plan.rows import (
    CONVERSATION,
    BadRowError,
    Conversation,
    read_conversations,
    to_conversation,
)
from areal_sdk.trainer import Demonstration


def load_demonstrations(section: SftSection, *, program: Program) -> list[Conversation]:
    """Conversations with at least one assistant message; none where `sft.steps` is 0."""
    if not section.steps:
        return []
    if section.demonstrations is not None:
        return read_conversations(Path(section.demonstrations))
    if program.demonstrations is None:
        raise ConfigError(
            f"sft.steps = {section.steps} needs demonstrations: set sft.demonstrations to a JSONL "
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
    """A list of messages; or a mapping, as in a JSONL file, that may have tools too."""
    row = given if isinstance(given, Mapping) else {"messages": given}
    try:
        return to_conversation(row, where)
    except BadRowError as exc:
        raise ConfigError(f"{where}: {exc}; give a list of messages, or {CONVERSATION}") from None


def as_demonstrations(
    conversations: Iterable[Conversation], renderer: Renderer
) -> list[Demonstration]:
    """The conversations in tokens, exactly as the gateway would render them."""
    return [
        row
        for given in conversations
        for row in to_demonstrations(given.messages, renderer, tools=given.tools)
    ]
