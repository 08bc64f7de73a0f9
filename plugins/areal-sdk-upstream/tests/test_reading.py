"""Requests and answers of providers, as text."""

import json
from typing import Any

import pytest

from areal_sdk.types import FinishReason
from areal_sdk_upstream.reply import read_reply
from areal_sdk_upstream.request import read_request
from areal_sdk_upstream.secret import Secret

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("body", "last"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}]}, "Hi"),
        ({"prompt": "Hi"}, "Hi"),
        ({"input": "Hi", "instructions": "Be brief."}, "Hi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, "Hi"),
    ],
    ids=["chat", "completions", "responses", "messages"],
)
def test_each_wire_format_of_a_request_is_a_conversation(body: dict[str, Any], last: str) -> None:
    request = read_request({"model": "m", "temperature": 0.5, **body})
    assert request.prompt_of(0, 1)[-1]["content"] == last
    assert request.asked == {"model": "m", "temperature": 0.5}


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [CHOICE]},
        {"output": [{"type": "message", "content": [{"text": "Yes."}]}], "status": "completed"},
        {"content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn"},
    ],
    ids=["chat", "responses", "messages"],
)
def test_each_wire_format_of_an_answer_is_a_message(body: dict[str, Any]) -> None:
    reply = read_reply(json.dumps({"id": "r", **body}).encode(), is_stream=False)
    assert reply is not None
    assert (reply.id, reply.choices[0].message["content"]) == ("r", "Yes.")
    assert reply.choices[0].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_answer_without_its_end_is_known_as_such(reason: str) -> None:
    raw = json.dumps({"id": "r", "choices": [{**CHOICE, "finish_reason": reason}]}).encode()
    reply = read_reply(raw, is_stream=False)
    assert reply is not None
    assert reply.choices[0].finish_reason is FinishReason.LENGTH


def test_a_stream_that_breaks_off_is_its_beginning() -> None:
    event = {"id": "r", "choices": [{"index": 0, "delta": {"content": "Ye"}}]}
    reply = read_reply(b"data: " + json.dumps(event).encode() + b"\n\ndata: {", is_stream=True)
    assert reply is not None
    assert reply.choices[0].message["content"] == "Ye"
    assert reply.choices[0].finish_reason is FinishReason.ABORT


def test_an_answer_that_is_nested_too_deep_is_not_read() -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        read_reply(b'{"content": ' + b"[" * 300 + b"]" * 300 + b"}", is_stream=False)


def test_a_key_in_an_error_is_masked() -> None:
    secret = Secret("sk-prov-0123456789abcdef")
    assert b"0123" not in secret.masked_error(b'{"error": "no key sk-prov-0123456789abcdef"}')
