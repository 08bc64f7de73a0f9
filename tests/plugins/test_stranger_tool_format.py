"""A tool-call format that a plugin brings is found, read by the gateway, and carried to other processes."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from areal_sdk.config import load_config
from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.gateway import Gateway
from areal_sdk.loop.plan.models import FoundModel, found_model
from areal_sdk.plugins import Plugins, load_plugins
from areal_sdk.testing import ScriptedEngine
from tests.gateway.model_dirs import make_model_dir
from tests.gateway.tool_calls.three_tools import TOOLS
from tests.plugins.conftest import Install

BRACKETS = Path(__file__).parent / "strangers" / "brackets.py"
CALL = '[call]{"name": "calculator", "arguments": {"expression": "1+1"}}[/call]'

FORMAT = """
import areal_sdk
from areal_sdk.tool_calls import TaggedCalls, ToolFormat

FORMAT = ToolFormat({calls_itself!r}, lambda tools: TaggedCalls("<a>", "</a>", list), lambda name: "<a>")

@areal_sdk.hookimpl
def register_tool_formats(register):
    register("angles", {item})
"""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model whose template writes calls in brackets."""
    directory = make_model_dir(tmp_path / "model", "qwen2.5")
    template = directory / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text.replace("<tool_call>", "[call]").replace("</tool_call>", "[/call]"))
    return directory


def found(model_dir: Path, plugins: Plugins, *settings: str) -> FoundModel:
    return found_model(model_dir, load_config(settings=settings), plugins.tool_formats)


def with_brackets() -> Plugins:
    return load_plugins(files=[BRACKETS])


def test_a_template_that_speaks_the_format_of_a_plugin_finds_it(model_dir: Path) -> None:
    assert found(model_dir, with_brackets()).renderer.tool_format.name == "brackets"
    assert found(model_dir, load_plugins()).renderer.tool_format.name == "hermes"


def test_a_plugins_format_is_tried_before_those_of_the_core(model_dir: Path) -> None:
    template = model_dir / "chat_template.jinja"
    template.write_text(template.read_text() + "{# <tool_call> #}")
    assert found(model_dir, with_brackets()).renderer.tool_format.name == "brackets"


def test_a_named_format_overrules_the_template(model_dir: Path) -> None:
    named = found(model_dir, with_brackets(), "gateway.tool_format=glm")
    assert named.renderer.tool_format.name == "glm"
    with pytest.raises(ConfigError, match=r"unknown tool_format 'square'; known: brackets, .*glm"):
        found(model_dir, with_brackets(), "gateway.tool_format=square")


async def test_an_openai_client_gets_calls_and_its_history_stays_one_trajectory(
    model_dir: Path,
) -> None:
    engine = ScriptedEngine([CALL, f"Twice. {CALL} {CALL}", "2"], model_dir=model_dir)
    gateway = Gateway(
        engine, renderer=found(model_dir, with_brackets()).renderer, model_name="policy"
    )
    await gateway.start()
    session = gateway.sessions.open("e")
    messages: list[Any] = [{"role": "user", "content": "1 + 1?"}]
    tools: Any = TOOLS
    try:
        async with AsyncOpenAI(base_url=gateway.base_url, api_key=session.key) as client:
            whole = await client.chat.completions.create(
                model="policy", messages=messages, tools=tools
            )
            calls: list[Any] = [*(whole.choices[0].message.tool_calls or [])]
            assert [(call.function.name, call.function.arguments) for call in calls] == [
                ("calculator", '{"expression":"1+1"}')
            ]
            messages += [
                whole.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": calls[0].id, "content": "2"},
            ]
            pieces = [
                chunk.choices[0].delta
                async for chunk in await client.chat.completions.create(
                    model="policy", messages=messages, tools=tools, stream=True
                )
            ]
            assert "".join(piece.content or "" for piece in pieces) == "Twice."
            assert sum(len(piece.tool_calls or ()) for piece in pieces) == 2
    finally:
        await gateway.aclose()
    first, second = session.turns
    tokens = (*first.prompt_tokens, *first.output_tokens)
    assert second.prompt_tokens[: len(tokens)] == tokens, "the sampled tokens of the call are kept"


def test_other_processes_get_the_format_that_was_chosen(model_dir: Path) -> None:
    """Rollout nodes and gateway processes load no plugins."""
    model = found(model_dir, with_brackets())
    program = (
        "import sys; from areal_sdk.loop.plan.models import load_renderer; "
        "print(load_renderer(*sys.argv[1:]).tool_format.name)"
    )
    for reference in (model.tool_format, found(model_dir, load_plugins()).tool_format):
        command = [sys.executable, "-c", program, str(model_dir), reference]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.strip() == ("brackets" if "brackets" in reference else "hermes")


@pytest.mark.parametrize(
    ("item", "calls_itself", "why"),
    [
        ('"no_such_package:FORMAT"', "angles", "No module named 'no_such_package'"),
        ("FORMAT", "triangles", "calls itself 'triangles': give it one name"),
    ],
    ids=["missing", "two-names"],
)
def test_a_broken_format_is_blamed_and_stops_only_runs_that_name_it(
    item: str,
    calls_itself: str,
    why: str,
    model_dir: Path,
    install: Install,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install("areal-sdk-angles", FORMAT.format(item=item, calls_itself=calls_itself))
    plugins = load_plugins()
    with caplog.at_level(logging.WARNING):
        assert found(model_dir, plugins).renderer.tool_format.name == "hermes"
    (warning,) = caplog.messages
    assert warning.startswith("tool_format 'angles' of areal-sdk-angles")
    assert why in warning
    with pytest.raises(PluginError, match="'angles' of areal-sdk-angles"):
        found(model_dir, plugins, "gateway.tool_format=angles")


def test_what_is_no_format_is_refused_when_the_plugin_is_loaded(install: Install) -> None:
    install("areal-sdk-angles", FORMAT.format(item="FORMAT.parser", calls_itself="angles"))
    (report,) = (r for r in load_plugins().report() if r.distribution == "areal-sdk-angles")
    assert "tool_format 'angles' must be an areal_sdk.tool_calls.ToolFormat" in report.error


def test_text_that_only_looks_like_a_call_stays_text_with_the_reason() -> None:
    parser = with_brackets().tool_formats.get("brackets").parser(TOOLS)
    said = [*parser.feed("[call]{not json}[/call]"), *parser.finish()]
    assert "".join(getattr(event, "text", "?") for event in said) == "[call]{not json}[/call]"
    assert "malformed tool call" in parser.problems[0]
    assert json.dumps(parser.problems)
