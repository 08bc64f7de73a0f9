"""Demonstrations of the warm-up are read as a fine-tuning run reads them: with the tools of the agent."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import SftSection
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.loop.plan.demonstrations import as_demonstrations, load_demonstrations
from areal_sdk.loop.plan.program import Program
from areal_sdk.models import resolve_model

TOOL = {
    "type": "function",
    "function": {"name": "convert", "parameters": {"type": "object", "properties": {}}},
}
MESSAGES = [{"role": "user", "content": "3 in?"}, {"role": "assistant", "content": "7.62 cm"}]


def yielding(*rows: Any) -> Program:
    def demonstrations() -> Iterable[Any]:
        return rows

    return Program("agent.py", lambda task, context: None, demonstrations=demonstrations)


def test_the_model_is_shown_the_tools_that_a_demonstration_was_made_with(tmp_path: Path) -> None:
    directory = resolve_model("tiny")
    renderer = Renderer(Tokenizer.load(directory), ChatTemplate.load(directory))
    path = tmp_path / "demonstrations.jsonl"
    path.write_text(json.dumps({"messages": MESSAGES, "tools": [TOOL]}) + "\n")
    ways = [
        load_demonstrations(SftSection(steps=1, demonstrations=str(path)), program=yielding()),
        load_demonstrations(
            SftSection(steps=1), program=yielding({"messages": MESSAGES, "tools": [TOOL]})
        ),
    ]
    [without], _ = as_demonstrations(
        load_demonstrations(SftSection(steps=1), program=yielding(MESSAGES)), renderer
    )
    for found in ways:
        [row], _ = as_demonstrations(found, renderer)
        assert "convert" in renderer.tokenizer.decode(row.tokens)
        assert len(row.tokens) > len(without.tokens)
        assert row.num_trained == without.num_trained


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"chat": MESSAGES}, "number 1: no \"messages\" \\(it has 'chat'\\)"),
        (MESSAGES[:1], "number 1: no assistant message to learn from"),
        ("hello", "number 1: 'messages' is not a list of messages"),
        ({"messages": MESSAGES, "tools": ["convert"]}, '"tools" is not a list'),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_number(row: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_demonstrations(SftSection(steps=1), program=yielding(row))


def test_a_column_that_the_template_has_no_place_for_is_named(tmp_path: Path) -> None:
    directory = resolve_model("tiny")
    renderer = Renderer(Tokenizer.load(directory), ChatTemplate.load(directory))
    thoughtful = [MESSAGES[0], {**MESSAGES[1], "reasoning_content": "3 * 2.54"}]
    given = load_demonstrations(SftSection(steps=1), program=yielding(thoughtful, MESSAGES))
    rows, notes = as_demonstrations(given, renderer)
    assert len(rows) == 2
    [note] = notes
    assert note.startswith("1 row with thoughts (reasoning_content), which are left out")
