"""A chat request is read before anything is rendered."""

from typing import Any

from areal_sdk.gateway.wire.chat import parse
from areal_sdk.gateway.wire.fields import Fields


def body(arguments: object) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {
        "model": "m",
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
    }


def test_arguments_sent_as_an_object_are_those_sent_as_text() -> None:
    as_object, as_text = (
        parse(Fields(body(a))).request.messages for a in ({"x": "ä"}, '{"x": "ä"}')
    )
    assert as_object == as_text


def test_an_object_that_python_takes_for_equal_is_read_anew() -> None:
    before = parse(Fields(body({"x": 1}))).request.messages
    assert parse(Fields(body({"x": True})), known=before).request.messages != before
    assert parse(Fields(body({"x": 1})), known=before).request.messages == before
