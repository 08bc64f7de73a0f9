"""Written conversations become the tokens that the gateway would have recorded."""

from pathlib import Path

import pytest

from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.types import Message
from tests.gateway.conftest import StartGateway
from tests.gateway.tool_calls.three_tools import TOOLS

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ASKED: Message = {"role": "user", "content": "Weather in Oslo?"}


def renderer_of(directory: Path) -> Renderer:
    return Renderer(Tokenizer.load(directory), ChatTemplate.load(directory))


NO_THOUGHT = "<think>\n\n</think>\n\n"
"""Qwen3's template writes it before an answer without a thought, so the model is shown it."""


@pytest.mark.parametrize(("shape", "thought"), [("qwen2.5", ""), ("qwen3", NO_THOUGHT)])
async def test_a_conversation_with_tools_is_rendered_as_the_gateway_renders_it(
    start_gateway: StartGateway, model_dirs: dict[str, Path], shape: str, thought: str
) -> None:
    gateway, _ = await start_gateway([thought + CALL, thought + "Sunny."], shape=shape)
    session = gateway.sessions.open("e")
    called = await session.generate([ASKED], tools=TOOLS)
    assert called.message["tool_calls"]
    result: Message = {"role": "tool", "tool_call_id": "1", "content": "sun"}
    told = await session.generate([ASKED, called.message, result], tools=TOOLS)
    assert told.parent == 0

    messages = [ASKED, called.message, result, told.message]
    [row] = to_demonstrations(messages, renderer_of(model_dirs[shape]), tools=TOOLS)
    assert row.tokens == told.tokens
    trained = tuple(
        t for t, is_trained in zip(row.tokens, row.loss_mask, strict=True) if is_trained
    )
    assert trained == called.output_tokens + told.output_tokens


def test_a_message_of_weight_0_is_context(model_dirs: dict[str, Path]) -> None:
    renderer = renderer_of(model_dirs["qwen2.5"])
    example: Message = {"role": "assistant", "content": "Rain.", "weight": 0}
    answer: Message = {"role": "assistant", "content": "Sun."}
    [row] = to_demonstrations([ASKED, example, ASKED, answer], renderer)
    [alone] = to_demonstrations([ASKED, answer], renderer)
    assert row.num_trained == alone.num_trained
    [both] = to_demonstrations([ASKED, {**example, "weight": 1}, ASKED, answer], renderer)
    assert both.tokens == row.tokens
    assert both.num_trained > row.num_trained
    assert to_demonstrations([ASKED, example], renderer) == []
