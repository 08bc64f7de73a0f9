"""Requests made from the SDKs' own request types: each is answered as the SDK says, or refused by name."""

import json
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import anthropic.types as anthropic
import anthropic.types.beta as anthropic_beta
import pytest
from pydantic import TypeAdapter

from tests.gateway.conftest import StartGateway
from tests.gateway.published import event_model, events_of, problems
from tests.toolbox.gateway_requests import post

NUM_REQUESTS = 200
REQUESTS: dict[str, tuple[str, Any, Any, Any]] = {
    "messages": (
        "messages",
        anthropic.message_create_params.MessageCreateParamsNonStreaming,
        anthropic.Message,
        anthropic.RawMessageStreamEvent,
    ),
    "beta messages": (
        "messages?beta=true",
        anthropic_beta.message_create_params.MessageCreateParamsNonStreaming,
        anthropic_beta.BetaMessage,
        anthropic_beta.BetaRawMessageStreamEvent,
    ),
}
"""The path, the type of a request, of a whole reply and of an event, by name."""

IN_HEADERS = {"betas", "user_profile_id", "workspace_id"}
"""Parameters of the SDK's methods that are no fields of a body."""
WORDS = ("a", "get weather", "Hi there.", "sha256:1", "tool_1", "text", "\u00e9", "0", "{}")
DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


class Maker:
    """Random documents of a JSON schema."""

    def __init__(self, schema: dict[str, Any], seed: int) -> None:
        self._defs = schema.get("$defs", {})
        self._random = Random(seed)

    def make(self, schema: dict[str, Any], depth: int = 0) -> Any:
        random = self._random
        if "$ref" in schema:
            return self.make(self._defs[schema["$ref"].rpartition("/")[2]], depth)
        for union in ("anyOf", "oneOf", "allOf"):
            if union in schema:
                return self.make(random.choice(schema[union]), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return random.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                number = random.randint(1, 2) if depth < 8 else 1
                return [self.make(schema.get("items", {}), depth + 1) for _ in range(number)]
            case "string":
                return random.choice(WORDS)
            case "integer":
                return random.choice((1, 2, 7, 100, 1024))
            case "number":
                return random.choice((0, 0.5, 1, 1.0))
            case "boolean":
                return random.random() < 0.5
            case "null":
                return None
            case _:
                return random.choice(({}, "a", 1, [], None))

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        random, required = self._random, schema.get("required", ())
        share = 0.2 if depth else 0.1
        properties = schema.get("properties", {}).items()
        made = {
            name: self.make(value, depth + 1)
            for name, value in properties
            if name in required or random.random() < share
        }
        if not properties and random.random() < 0.5:
            made["a"] = random.choice(("a", 1, [], {}, None))
        return made


@cache
def schema_of(request: Any) -> dict[str, Any]:
    return TypeAdapter(request).json_schema()


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_that_the_sdk_can_send_is_answered_or_refused_by_name(
    start_gateway: StartGateway, name: str
) -> None:
    path, request, whole, event = REQUESTS[name]
    gateway, _ = await start_gateway("<think>\nhm\n</think>\n\nI will.", shape="qwen3")
    maker = Maker(schema_of(request), seed=7)
    statuses: Counter[int] = Counter()
    for number in range(NUM_REQUESTS):
        made = maker.make(schema_of(request))
        body = {field: value for field, value in made.items() if field not in IN_HEADERS}
        is_stream = number % 2 == 1
        session = gateway.sessions.open(f"e{number}")
        sent = {**body, "stream": True} if is_stream else body
        status, answer = await post(session, gateway, sent, path=path)
        session.close()
        statuses[status] += 1
        said = json.dumps(body)
        if status == 200 and is_stream:
            events = events_of(answer)
            parts = [e for e in events if e["type"] != "ping"]
            assert [p for e in parts for p in problems(e, event_model(event, e))] == [], said
            in_order(events)
        elif status == 200:
            assert problems(answer, whole) == [], said
        else:
            assert status == 400, (answer, said)
            assert problems(answer, anthropic.ErrorResponse) == [], said
            assert answer["error"]["type"] == "invalid_request_error", said
            assert "Unrecognized" not in answer["error"]["message"], said
    assert statuses[200] > NUM_REQUESTS / 10, "else little was checked"


def in_order(events: list[dict[str, Any]]) -> None:
    """The published order: blocks one after the other, each with deltas of its own kind."""
    first, *rest, change, last = [e for e in events if e["type"] != "ping"]
    assert [e["type"] for e in (first, change, last)] == [
        *("message_start", "message_delta", "message_stop")
    ]
    assert change["delta"]["stop_reason"] is not None
    opened: str | None = None
    number = 0
    for event in rest:
        assert event["index"] == number, events
        match event["type"]:
            case "content_block_start":
                assert opened is None, events
                opened = event["content_block"]["type"]
            case "content_block_delta":
                assert opened is not None, events
                assert event["delta"]["type"] in DELTAS[opened], events
            case "content_block_stop":
                assert opened is not None, events
                opened, number = None, number + 1
            case kind:
                raise AssertionError(kind)
    assert opened is None, events
