"""Answers are well formed and never a 500, whatever a client sends."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.conftest import StartGateway
from tests.gateway.wire.test_openai_client import CALL, TOOLS

USER = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
ANSWER = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "hm",
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "2"}
FLAT_TOOL = {"type": "function", **TOOLS[0]["function"]}
ITEMS: list[Any] = [
    {"role": "user", "content": "Hi"},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "x", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "calculator", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "2"},
    {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "2"},
]
CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FLAT_TOOL, CUSTOM]}
OLDER_CALL = {"role": "assistant", "function_call": {"name": "calculator", "arguments": "{}"}}
OLDER_RESULT = {"role": "function", "name": "calculator", "content": "2"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [FLAT_TOOL]}
BLOCKS: list[Any] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "c", "name": "calculator", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": "2", "is_error": True}],
    },
]

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, USER, ANSWER, RESULT],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "calculator"}},
        "stop": ["x"],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "logit_bias": {"1": 2},
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": True},
    },
    "chat/completions with functions": {
        "model": "m",
        "messages": [USER, OLDER_CALL, OLDER_RESULT],
        "functions": [TOOLS[0]["function"]],
        "function_call": {"name": "calculator"},
    },
    "chat/completions with custom tools": {
        "model": "m",
        "messages": [USER],
        "tools": [*TOOLS, {"type": "custom", "custom": CUSTOM}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}},
    },
    "completions": {
        "model": "m",
        "prompt": [[1, 2], "x"],
        "echo": True,
        "max_tokens": 3,
        "stop": "x",
        "n": 1,
    },
    "responses": {
        "model": "m",
        "input": ITEMS,
        "tools": [FLAT_TOOL],
        "tool_choice": {"type": "function", "name": "calculator"},
        "text": {"format": {"type": "text"}},
        "include": ["message.output_text.logprobs"],
        "reasoning": {"effort": "low"},
        "instructions": "s",
    },
    "responses with namespaces": {
        "model": "m",
        "input": ITEMS,
        "tools": [CUSTOM, NAMESPACE, {"type": "web_search"}],
        "tool_choice": {**ALLOWED, "tools": [{**FLAT_TOOL, "namespace": "n"}, CUSTOM]},
        "client_metadata": {"a": "b"},
    },
    "messages": {
        "model": "m",
        "messages": BLOCKS,
        "max_tokens": 9,
        "system": [{"type": "text", "text": "s"}],
        "tools": [
            {"name": "calculator", "input_schema": TOOLS[0]["function"]["parameters"]},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": {"type": "tool", "name": "calculator"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    },
    "reward": {"reward": 0.5, "turn": None},
}

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["function", "text", "auto", "assistant", "tool", "\ud83d", "<|im_end|>"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, (dict, list)):
            yield from _places(inner, (*path, key))
        else:
            yield (*path, key)


def _spoil(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


@pytest.mark.parametrize("path", list(BODIES))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_body_breaks_the_gateway(
    start_gateway: StartGateway, path: str, data: st.DataObject
) -> None:
    gateway, engine = await start_gateway(CALL, shape="qwen3")
    session = gateway.sessions.open("e")
    url = f"{session.base_url(gateway.base_url)}/{path.partition(' with ')[0]}"
    async with aiohttp.ClientSession() as http:
        for _ in range(4):
            body = json.loads(json.dumps(BODIES[path]))
            where = data.draw(st.sampled_from(list(_places(body))))
            _spoil(body, where, data.draw(JSON))
            body["stream"] = data.draw(st.booleans())
            async with http.post(url, data=json.dumps(body).encode()) as reply:
                raw = await reply.read()
            assert reply.status in (200, 400), (body, raw)
            if reply.content_type == "application/json":
                json.loads(raw)
    await gateway.aclose()
    assert engine.num_active == 0
