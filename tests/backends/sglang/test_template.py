"""SGLang reads what the gateway trained when it serves an exported model by itself."""

import asyncio
from pathlib import Path

import openai
import pytest

from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.gateway.tokens.template import store_plain_tools
from areal_sdk.models import make_tiny_model
from areal_sdk_sglang.install import SGLangEnvironment
from tests.backends.sglang.conftest import start_server, wait_until_they_sample
from tests.gateway.model_dirs import CHATML
from tests.toolbox.plain_tools import CONVERSATIONS, TOOLS, as_text, result

pytestmark = pytest.mark.slow

REFUSED = ("a developer",)
"""Roles that SGLang's own checks do not take."""


def test_sglang_renders_what_was_trained(environment: SGLangEnvironment, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    (model / "chat_template.jinja").write_text(CHATML)
    trained = Renderer.load(model)
    assert trained.weaves_tools
    store_plain_tools(model)
    server = start_server(model, environment, log_path=tmp_path / "server.log")
    try:
        asyncio.run(wait_until_they_sample([server]))
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
            for name, messages in CONVERSATIONS.items():
                if name in REFUSED:
                    continue
                if messages[-1]["role"] == "assistant":  # SGLang would make it a user's message
                    messages = [*messages, result("33")]
                for tools in ((), TOOLS[:1], TOOLS):
                    chat = TemplateInput(tuple(as_text(messages)), tuple(tools))
                    assert read(client, chat) == trained.first(chat).tokens, (name, len(tools))
    finally:
        asyncio.run(server.stop(grace_s=2.0))


def read(client: openai.OpenAI, chat: TemplateInput) -> tuple[int, ...]:
    """The tokens of the prompt that the server makes of a chat."""
    reply = client.post(
        "/chat/completions",
        cast_to=object,
        body={
            "model": "default",
            "messages": chat.messages,
            "max_tokens": 1,
            "return_input_ids_in_sglext": True,
            **({"tools": chat.tools} if chat.tools else {}),
        },
    )
    assert isinstance(reply, dict)
    return tuple(reply["sglext"]["input_ids"])
