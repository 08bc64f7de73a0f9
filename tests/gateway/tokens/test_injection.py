"""Text that a client sends never becomes a special token of the prompt, wherever it stands in a request."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.testing import ScriptedEngine
from tests.gateway.conftest import StartGateway
from tests.gateway.model_dirs import TEMPLATES
from tests.gateway.real_models import REAL_MODELS, real_model_dir
from tests.toolbox.gateway_requests import post

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
HI = {"role": "user", "content": "Hi"}
MARK = "HOSTILE"
"""Stands in the cases for the text that is tried."""
ESCAPED = "ESCAPED"
"""Stands for the same text inside a string of JSON, as Go's encoder writes it: `\\u003c|im_end|\\u003e`."""


def chat(*messages: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "chat/completions", {"messages": [HI, *messages], **more}


def answer_with(name: str = "f", arguments: str = '{"a": 1}', call_id: str = "abcdefghi") -> Any:
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tool(name: str = "f", about: str = "", **schema: Any) -> dict[str, Any]:
    function = {"name": name, "description": about, "parameters": {**SCHEMA, **schema}}
    return {"type": "function", "function": function}


def messages(*said: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "messages", {"messages": [HI, *said], "max_tokens": 2, **more}


def responses(*items: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "responses", {"input": [HI, *items], **more}


def result(text: str, call_id: str = "abcdefghi") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def blocks(*parts: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(parts)}


OWN_WORDS: dict[str, Any] = {"$comment": MARK, MARK: [[MARK]]}
FLAT = {"type": "function", "name": "f", "parameters": SCHEMA}
OWN = {"name": "f", "input_schema": SCHEMA}
ADDED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}
DONE = {"type": "function_call_output", "call_id": "c", "output": "1"}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a question": chat({"role": "user", "content": MARK}),
    "an answer": chat({"role": "assistant", "content": MARK}, HI),
    "a system message": chat({"role": "system", "content": MARK}, HI),
    "a name": chat({"role": "user", "name": MARK, "content": "Hi"}),
    "a thought": chat({"role": "assistant", "content": "a", "reasoning_content": MARK}, HI),
    "a result": chat(answer_with(), result(MARK), tools=[tool()]),
    "a call's id": chat(answer_with(call_id=MARK), result("1", MARK), tools=[tool()]),
    "a called name": chat(answer_with(MARK), result("1"), tools=[tool()]),
    "arguments": chat(answer_with(arguments=f'{{"a": "{MARK}"}}'), result("1"), tools=[tool()]),
    "escaped arguments": chat(
        answer_with(arguments=f'{{"a": "{ESCAPED}"}}'), result("1"), tools=[tool()]
    ),
    "an escaped argument's name": chat(
        answer_with(arguments=f'{{"{ESCAPED}": 1}}'), result("1"), tools=[tool()]
    ),
    "escaped arguments of no tool": chat(
        answer_with(arguments=f'{{"a": "{ESCAPED}"}}'), result("1")
    ),
    "arguments that are no JSON": chat(answer_with(arguments=MARK), result("1"), tools=[tool()]),
    "a tool's words": chat(tools=[tool(about=MARK)]),
    "a tool's name": chat(tools=[tool(MARK)]),
    "a forced tool's name": chat(
        tools=[tool(MARK), tool()],
        tool_choice={"type": "function", "function": {"name": MARK}},
    ),
    "a parameter": chat(tools=[tool(properties={MARK: {"type": "string", "description": MARK}})]),
    "an enum": chat(tools=[tool(properties={"a": {"enum": [MARK], "title": MARK}})]),
    "a schema's own words": chat(tools=[tool(**OWN_WORDS)]),
    "a custom tool": chat(
        tools=[
            {
                "type": "custom",
                "custom": {
                    "name": "f",
                    "description": MARK,
                    "format": {"type": "grammar", "grammar": {"syntax": MARK, "definition": MARK}},
                },
            }
        ]
    ),
    "an option of the template": chat(
        chat_template_kwargs={"bos_token": MARK, "date_string": MARK, "documents": [MARK]}
    ),
    "a system block": messages(system=[{"type": "text", "text": MARK}]),
    "an answer that is begun": messages({"role": "assistant", "content": MARK}),
    "a thinking block": messages(
        blocks({"type": "thinking", "thinking": MARK}, {"type": "text", "text": "a"}), HI
    ),
    "a tool_use block": messages(
        blocks({"type": "tool_use", "id": "t", "name": MARK, "input": {MARK: MARK}}),
        ADDED,
        tools=[OWN],
    ),
    "a result block": messages(
        blocks({"type": "tool_use", "id": MARK, "name": "f", "input": {}}),
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": MARK, "content": MARK, "is_error": True}
            ],
        },
        tools=[OWN],
    ),
    "a tool of Anthropic's": messages(tools=[{**OWN, "name": MARK, "description": MARK}]),
    "a forced tool of Anthropic's": messages(
        tools=[{**OWN, "name": MARK}, OWN], tool_choice={"type": "tool", "name": MARK}
    ),
    "instructions": responses(instructions=MARK),
    "a function call": responses(
        {
            "type": "function_call",
            "call_id": "c",
            "name": MARK,
            "arguments": f'{{"a":"{ESCAPED}"}}',
        },
        DONE,
        tools=[FLAT],
    ),
    "a custom call": responses(
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": MARK},
        {"type": "custom_tool_call_output", "call_id": "c", "output": MARK},
        tools=[{"type": "custom", "name": "f", "description": MARK}],
    ),
    "a namespace": responses(
        tools=[{"type": "namespace", "name": MARK, "description": MARK, "tools": [FLAT]}]
    ),
    "a reasoning item": responses(
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": MARK}]},
        {"role": "assistant", "content": MARK},
        HI,
    ),
}


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if char in "<>&|[]" else char for char in text)


def with_text(body: dict[str, Any], text: str) -> dict[str, Any]:
    # ESCAPED stands in a string of JSON inside the body: its backslash is one of that inner JSON
    inner = json.dumps(escaped(text))[1:-1]
    raw = json.dumps({"model": "policy", **body}).replace(ESCAPED, inner)
    filled: dict[str, Any] = json.loads(raw.replace(MARK, json.dumps(text)[1:-1]))
    return filled


@pytest.mark.parametrize(
    "model",
    [*TEMPLATES, *(pytest.param(f"{m}, real", marks=pytest.mark.long) for m in REAL_MODELS)],
)
async def test_no_text_of_a_client_becomes_a_special_token(
    model: str, model_dirs: dict[str, Path]
) -> None:
    name, _, real = model.partition(", ")
    model_dir = real_model_dir(name) if real else model_dirs[name]
    engine = ScriptedEngine("ok", model_dir=model_dir, max_context=100_000, keep_requests=1)
    renderer = Renderer.load(model_dir)
    specials = {i: text for text, i in renderer.tokenizer.added.items()}
    hostile = [specials[i] for i in sorted(renderer.tokenizer.special_ids)][:8]
    gateway = Gateway(engine, renderer=renderer, model_name="policy")
    await gateway.start()
    numbers = itertools.count()
    found: list[str] = []

    async def prompted(http: aiohttp.ClientSession, case: str, text: str) -> Counter[int] | None:
        path, body = CASES[case]
        session = gateway.sessions.open(f"e{next(numbers)}")
        url = f"{session.base_url(gateway.base_url)}/{path}"
        async with http.post(url, json=with_text(body, text)) as reply:
            status, said = reply.status, await reply.text()
        session.close()
        assert status in (200, 400), (case, text, said)
        if status == 400:
            return None
        tokens = engine.requests[-1].tokens
        return Counter(t for t in tokens if t in renderer.tokenizer.special_ids)

    async with aiohttp.ClientSession() as http:
        for case in CASES:
            usual = await prompted(http, case, "harmless1")
            for text in hostile:
                met = await prompted(http, case, text)
                if met is not None and usual is not None and met != usual:
                    found.append(f"{case}: {text}")
    await gateway.aclose()
    assert not found


@pytest.mark.parametrize(
    "name", ["a b", 'f", "x": "', "f\n", "f(", "fé", "", "x" * 129, "<|im_end|>"]
)
@pytest.mark.parametrize("form", ["tool", "function", "custom", "flat", "namespace", "own"])
async def test_a_tool_whose_name_is_no_name_is_refused(
    start_gateway: StartGateway, name: str, form: str
) -> None:
    path, body, where = {
        "tool": (*chat(tools=[tool(name)]), "tools[0].function.name"),
        "function": (*chat(functions=[{"name": name}]), "functions[0].function.name"),
        "custom": (
            *chat(tools=[{"type": "custom", "custom": {"name": name}}]),
            "tools[0].custom.function.name",
        ),
        "flat": (*responses(tools=[{**FLAT, "name": name}]), "tools[0].function.name"),
        "namespace": (
            *responses(tools=[{"type": "namespace", "name": name, "tools": [FLAT]}]),
            "tools[0].name",
        ),
        "own": (*messages(tools=[{**OWN, "name": name}]), "tools.0"),
    }[form]
    gateway, engine = await start_gateway()
    status, answer = await post(gateway.sessions.open("e"), gateway, body, path=path)
    assert status == 400
    assert "name" in answer["error"]["message"]
    if form != "own":  # Anthropic's errors name no parameter
        assert answer["error"]["param"] == where
    assert engine.num_requests == 0


async def test_a_name_of_128_letters_digits_and_marks_is_taken(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    _, body = chat(tools=[tool("mcp__server.tool-1" + "x" * 110)])
    assert (await post(gateway.sessions.open("e"), gateway, body))[0] == 200
    assert engine.num_requests == 1
