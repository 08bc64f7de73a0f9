"""JSON nested deeper than it can be written again: refused where it enters, never a 500 later."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from areal_sdk.gateway import SamplingPolicy
from areal_sdk.gateway.untrusted import loads
from areal_sdk.tool_calls import MAX_DEPTH, is_too_deep
from areal_sdk.types import Exclusion
from tests.gateway.conftest import StartGateway
from tests.gateway.wire.bodies import BODIES
from tests.toolbox.gateway_requests import HI, TOOLS, control, post


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": [value]} if isinstance(value, str) else {"properties": value}
    return value


def test_a_value_is_read_up_to_the_depth_that_can_be_written() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert not is_too_deep(loads(deepest))
    with pytest.raises(orjson.JSONDecodeError, match="deeper than 200"):
        loads(f"[{deepest}]")
    assert len(loads(json.dumps([[]] * 1000))) == 1000, "wide is not deep"


ASKED = {
    "greedy": {"temperature": 0.0},
    "top_p": {"top_p": 0.9},
    "json": {"response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_a_trace_tells_why_tokens_are_excluded(
    start_gateway: StartGateway, asked: dict[str, Any]
) -> None:
    gateway, engine = await start_gateway("{}", sampling=SamplingPolicy(mode="respect"))
    engine._info = replace(engine.info, constrains_json=True)
    session = gateway.sessions.open("e")
    assert (await post(session, gateway, {"messages": HI, **asked}))[0] == 200
    status, trace = await control(gateway, "GET", "/control/sessions/e")
    assert status == 200, trace
    ((reason, number),) = trace["excluded_tokens"].items()
    assert Exclusion(reason) in Exclusion
    assert number == len(session.turns[0].output_tokens)
    assert (await control(gateway, "DELETE", "/control/sessions/e"))[0] == 200


@pytest.mark.parametrize("levels", [195, 300, 900])
@pytest.mark.parametrize("path", [p for p in BODIES if p != "reward"])
async def test_a_deep_tool_schema_is_never_a_500(
    start_gateway: StartGateway, path: str, levels: int
) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body = json.loads(json.dumps(BODIES[path])) | {"metadata": nested(levels)}
    for tool in body.get("tools", ()):
        schema = {"type": "object", "properties": nested(levels)}
        if "function" in tool:
            tool["function"]["parameters"] = schema
        else:
            tool["input_schema" if path == "messages" else "parameters"] = schema
    status, reply = await post(session, gateway, orjson.dumps(body) if levels < 250 else body)
    assert status in (200, 400), reply
    assert (await control(gateway, "GET", "/control/sessions/e"))[0] == 200


@pytest.mark.parametrize("levels", [195, 300, 900, 100_000])
async def test_deep_arguments_of_a_call_are_text(start_gateway: StartGateway, levels: int) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    arguments = '{"a": ' + "[" * levels + "]" * levels + "}"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "2"}
    messages = [*HI, said, result]
    status, reply = await post(session, gateway, {"messages": messages, "tools": TOOLS})
    assert status in (200, 400), reply


@pytest.mark.parametrize("levels", [195, 300, 900])
async def test_a_sampled_call_that_is_too_deep_is_text(
    start_gateway: StartGateway, levels: int
) -> None:
    text = '{"name": "calculator", "arguments": {"a": ' + "[" * levels + "]" * levels + "}}"
    gateway, _ = await start_gateway(f"<tool_call>\n{text}\n</tool_call>")
    session = gateway.sessions.open("e")
    for path, more in (
        ("chat/completions", {"messages": HI, "tools": TOOLS}),
        ("messages", {**BODIES["messages"], "tool_choice": {"type": "auto"}}),
    ):
        status, reply = await post(session, gateway, more, path=path)
        assert status == 200, reply
    assert (await control(gateway, "GET", "/control/sessions/e"))[0] == 200


@pytest.mark.parametrize("levels", [300, 900, 100_000])
@pytest.mark.parametrize("text", ["x", "\\ud83d"], ids=["plain", "half a surrogate pair"])
async def test_a_deep_body_is_a_400_that_says_so(
    start_gateway: StartGateway, levels: int, text: str
) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    value = "[" * levels + "]" * levels
    raw = f'{{"model": "m", "messages": [{{"role": "user", "content": "{text}", "x": {value}}}]}}'
    status, reply = await post(session, gateway, raw.encode())
    assert status == 400, reply
    assert "deep" in reply["error"]["message"] or "depth" in reply["error"]["message"]


@pytest.mark.parametrize("levels", [50, 300, 1000])
async def test_calls_written_as_deep_text_are_text(
    start_gateway: StartGateway, levels: int
) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    for inside in ("[" * levels + "]" * levels, "-" * levels + "1", "(" * levels + ")" * levels):
        said = {"role": "assistant", "content": f"Calling tools:\n[{inside}]"}
        status, reply = await post(session, gateway, {"messages": [*HI, said, *HI]})
        assert status == 200, reply


HUGE = {
    "chat/completions": ("max_tokens", "max_completion_tokens", "top_k"),
    "completions": ("max_tokens", "top_k"),
    "responses": ("max_output_tokens", "top_k"),
    "messages": ("max_tokens", "top_k"),
}


@pytest.mark.parametrize(("path", "field"), [(p, f) for p, fields in HUGE.items() for f in fields])
async def test_a_number_over_64_bits_is_refused_by_name(
    start_gateway: StartGateway, path: str, field: str
) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    body = json.dumps({**BODIES[path], field: 1e308}).encode()
    status, reply = await post(session, gateway, body, path=path)
    assert status == 400, reply
    assert field in reply["error"]["message"]
    assert engine.num_requests == 0
