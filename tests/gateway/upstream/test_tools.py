"""A tool is recorded as the gateway would tell a model of it, whatever the wire format."""

import json
from typing import Any

import pytest

from areal_sdk.gateway.wire.anthropic_tools import message_tools
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.gateway.wire.tools import chat_tools, response_tools
from areal_sdk_upstream.request import read_request

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
OF_CHAT = {"type": "function", "function": {"name": "add", "parameters": SCHEMA, "strict": True}}
OF_RESPONSES = {"strict": True, "parameters": SCHEMA, "name": "add", "type": "function"}
OF_RESPONSES_WITH_WORDS = {**OF_RESPONSES, "description": "Add."}
OF_ANTHROPIC = {"input_schema": SCHEMA, "name": "add"}
OF_ANTHROPIC_WITH_WORDS = {**OF_ANTHROPIC, "description": "Add.", "type": "custom"}


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (OF_CHAT, lambda fields: [one.tool for one in chat_tools(fields)]),
        (OF_RESPONSES, lambda fields: [one.tool for one in response_tools(fields)]),
        (OF_RESPONSES_WITH_WORDS, lambda fields: [one.tool for one in response_tools(fields)]),
        (OF_ANTHROPIC, message_tools),
        (OF_ANTHROPIC_WITH_WORDS, message_tools),
    ],
    ids=["chat", "responses", "responses, described", "messages", "messages, described"],
)
def test_a_recorded_tool_is_what_a_model_is_told_of(tool: dict[str, Any], told: Any) -> None:
    body = {"tools": [tool]}
    recorded = [json.dumps(one) for one in read_request(body).tools]  # with the order of its fields
    assert recorded == [json.dumps(one) for one in told(Fields(body))]


@pytest.mark.parametrize("tool", [{"type": "web_search"}, "nonsense", None, {"name": "add"}])
def test_other_tools_stay_as_they_came(tool: Any) -> None:
    assert read_request({"tools": [tool]}).tools == (tool,)
