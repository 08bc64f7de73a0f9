"""Demonstrations for supervised warm-up: a JSONL file, or `demonstrations()` beside the agent."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from areal_sdk.config import SftSection
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.plan.program import Program
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Message

Conversation = Sequence[Message]


def load_demonstrations(section: SftSection, *, program: Program) -> list[Conversation]:
    """Conversations with at least one assistant message; none where `sft.steps` is 0."""
    if not section.steps:
        return []
    if section.demonstrations is not None:
        path = Path(section.demonstrations)
        return _checked_rows(_read(path), str(path))
    if program.demonstrations is None:
        raise ConfigError(
            f"sft.steps = {section.steps} needs demonstrations: set sft.demonstrations to a JSONL "
            f"file, or define `def demonstrations()` beside {program.name!r}"
        )
    return _checked_rows(program.demonstrations(), f"demonstrations() of {program.name!r}")


def _read(path: Path) -> Iterable[Conversation]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise ConfigError(f"no such file: sft.demonstrations = {str(path)!r}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield orjson.loads(line)["messages"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ConfigError(f'{path}, line {number}: not a JSON object with "messages"') from None


def _checked_rows(conversations: Iterable[Conversation], what: str) -> list[Conversation]:
    found = list(conversations)
    for index, conversation in enumerate(found):
        if not any(message.get("role") == "assistant" for message in conversation):
            raise ConfigError(f"{what}, number {index + 1}: no assistant message to learn from")
    if not found:
        raise ConfigError(f"{what}: no demonstrations")
    return found


def as_demonstrations(
    conversations: Iterable[Conversation], renderer: Renderer
) -> list[Demonstration]:
    """The conversations in tokens, exactly as the gateway would render them."""
    return [row for given in conversations for row in to_demonstrations(given, renderer)]
