"""Real clients send more than plain requests: metadata, tools of other kinds, older calls."""

import json
from typing import Any

import anthropic.types
import pytest
from openai.types import chat, responses

from areal_sdk.gateway import Session
from tests.gateway.conftest import StartGateway
from tests.gateway.published import event_model, events_of, problems
from tests.toolbox.gateway_requests import HI, TOOLS, control, get, post

ASK_ITEM = {"role": "user", "content": "Hi"}
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
}
CLOSE = {
    "type": "function",
    "name": "close_agent",
    "description": "Close an agent.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"target": {"type": "string"}}},
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
CODEX: dict[str, Any] = {
    "model": "policy",
    "stream": True,
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be precise."}],
        },
        ASK_ITEM,
    ],
    "tools": [
        SHELL,
        {"type": "namespace", "name": "agents", "description": "For sub-agents.", "tools": [CLOSE]},
        PATCH,
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20236",
    "client_metadata": {"x-codex-turn-metadata": "{}"},
}
"""The request of Codex 0.169, with fewer words."""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def branches(session: Session) -> list[tuple[int | None, Any]]:
    return [(turn.parent, turn.fork) for turn in session.turns]


async def test_codex_is_answered_and_its_tools_are_told(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok")
    session = gateway.sessions.open("e")
    status, stream = await post(session, gateway, CODEX, path="responses")
    assert status == 200, stream
    prompt = engine.decode(engine.requests[0].tokens)
    for told in ("exec_command", "agents__close_agent", "For sub-agents.", "*** Begin Patch"):
        assert told in prompt
    assert "web_search" not in prompt
    assert session.notices == [
        "the tool web_search runs at its provider: the policy is not told of it"
    ]
    assert session.metadata["client_metadata"] == CODEX["client_metadata"]
    (trace,) = [await control(gateway, "GET", "/control/sessions/e")]
    assert trace[1]["metadata"]["prompt_cache_key"] == "01a20236"


@pytest.mark.parametrize("streams", [False, True])
async def test_calls_go_back_as_their_tools_were_declared(
    start_gateway: StartGateway, streams: bool
) -> None:
    said = "\n".join(
        [
            call("exec_command", cmd="ls"),
            call("agents__close_agent", target="a"),
            call("apply_patch", input="*** Begin Patch"),
            call("apply_patch", patch="no such parameter"),
        ]
    )
    gateway, _ = await start_gateway([said, "done"])
    session = gateway.sessions.open("e")
    asked = {**CODEX, "stream": streams}
    status, answer = await post(session, gateway, asked, path="responses")
    assert status == 200, answer
    if streams:
        events = events_of(answer)
        for event in events:
            assert problems(event, event_model(responses.ResponseStreamEvent, event)) == []
        kinds = [event["type"] for event in events]
        assert kinds.count("response.custom_tool_call_input.done") == 2
        answer = events[-1]["response"]
    assert problems(answer, responses.Response) == []
    output = answer["output"]
    assert [(i["type"], i["name"], i.get("namespace")) for i in output] == [
        ("function_call", "exec_command", None),
        ("function_call", "close_agent", "agents"),
        ("custom_tool_call", "apply_patch", None),
        ("custom_tool_call", "apply_patch", None),
    ]
    assert [i["input"] for i in output[2:]] == ["*** Begin Patch", '{"patch":"no such parameter"}']
    results = [
        {"type": f"{i['type']}_output", "call_id": i["call_id"], "output": "ok"} for i in output
    ]
    sent_back = [{k: v for k, v in i.items() if k not in ("id", "status")} for i in output]
    again = {**asked, "input": [*CODEX["input"], *sent_back, *results], "stream": False}
    _, answer = await post(session, gateway, again, path="responses")
    assert answer["output"][0]["content"][0]["text"] == "done"
    assert branches(session) == [(None, None), (0, None)]


async def test_a_custom_tool_of_chat_completions_takes_text(start_gateway: StartGateway) -> None:
    said = call("apply_patch", input="*** Begin Patch")
    gateway, engine = await start_gateway([said, said, "done"])
    session = gateway.sessions.open("e")
    custom = {"name": "apply_patch", "format": {"type": "grammar", "grammar": PATCH["format"]}}
    asked: dict[str, Any] = {"messages": HI, "tools": [{"type": "custom", "custom": custom}]}
    _, answer = await post(session, gateway, asked)
    assert problems(answer, chat.ChatCompletion) == []
    message = answer["choices"][0]["message"]
    (sampled,) = message["tool_calls"]
    assert sampled["custom"] == {"name": "apply_patch", "input": "*** Begin Patch"}
    assert "*** Begin Patch" in engine.decode(engine.requests[0].tokens)
    _, stream = await post(gateway.sessions.open("s"), gateway, {**asked, "stream": True})
    (delta,) = [
        d for e in events_of(stream) for d in e["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert delta["custom"] == sampled["custom"]
    result = {"role": "tool", "tool_call_id": sampled["id"], "content": "ok"}
    again = {**asked, "messages": [*HI, message, result]}
    assert (await post(session, gateway, again))[0] == 200
    assert branches(session) == [(None, None), (0, None)]


ALLOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "chat/completions",
        {
            "messages": HI,
            "tools": [*TOOLS, {"type": "function", "function": {"name": "other"}}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [TOOLS[0]]},
            },
        },
    ),
    "responses": (
        "responses",
        {
            "input": "Hi",
            "tools": [
                {"type": "function", "name": "other"},
                {"type": "function", "name": "calculator"},
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "calculator"}, {"type": "web_search"}],
            },
        },
    ),
}


@pytest.mark.parametrize("asked", ALLOWED)
async def test_only_allowed_tools_are_called(start_gateway: StartGateway, asked: str) -> None:
    path, body = ALLOWED[asked]
    gateway, engine = await start_gateway(f"{call('other')}\n{call('calculator', expression='1')}")
    session = gateway.sessions.open("e")
    status, answer = await post(session, gateway, body, path=path)
    assert status == 200, answer
    assert "other" not in json.dumps(answer.get("choices") or answer["output"])
    assert "calculator" in json.dumps(answer.get("choices") or answer["output"])
    assert session.notices == ["a call of 'other' was left out: tool_choice forbids it"]
    assert "other" in engine.decode(engine.requests[0].tokens)  # the prompt does not change with it


async def test_the_one_allowed_tool_that_is_required_begins_the_answer(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway('calculator", "arguments": {}}\n</tool_call>')
    path, body = ALLOWED["responses"]
    choice = {**body["tool_choice"], "mode": "required"}
    await post(gateway.sessions.open("e"), gateway, {**body, "tool_choice": choice}, path=path)
    assert engine.decode(engine.requests[0].tokens).endswith('"name": "calculator", "arguments": ')


FUNCTION = {"name": "calculator", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("streams", [False, True])
async def test_older_functions_are_called_and_answered_in_the_older_way(
    start_gateway: StartGateway, streams: bool
) -> None:
    gateway, _ = await start_gateway([f"See.\n{call('calculator', x=1)}", "2", "3"])
    session = gateway.sessions.open("e")
    asked = {"messages": HI, "functions": [FUNCTION], "stream": streams}
    status, answer = await post(session, gateway, asked)
    assert status == 200, answer
    if streams:
        events = events_of(answer)
        assert [p for e in events for p in problems(e, chat.ChatCompletionChunk)] == []
        deltas = [e["choices"][0]["delta"] for e in events]
        (function_call,) = [d["function_call"] for d in deltas if "function_call" in d]
        reason = events[-1]["choices"][0]["finish_reason"]
    else:
        assert problems(answer, chat.ChatCompletion) == []
        message = answer["choices"][0]["message"]
        assert "tool_calls" not in message
        function_call, reason = message["function_call"], answer["choices"][0]["finish_reason"]
    assert (function_call, reason) == (
        {"name": "calculator", "arguments": '{"x":1}'},
        "function_call",
    )
    said = {"role": "assistant", "content": "See.", "function_call": function_call}
    result = {"role": "function", "name": "calculator", "content": "2"}
    again: dict[str, Any] = {**asked, "messages": [*HI, said, result], "stream": False}
    assert (await post(session, gateway, again))[0] == 200
    more = [*again["messages"], {"role": "assistant", "content": "2"}, *HI]
    assert (await post(session, gateway, {**again, "messages": more}))[0] == 200
    assert branches(session) == [(None, None), (0, None), (1, None)]


async def test_a_function_call_that_is_demanded_begins_the_answer(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("{}}\n</tool_call>")
    body = {"messages": HI, "functions": [FUNCTION], "function_call": {"name": "calculator"}}
    _, answer = await post(gateway.sessions.open("e"), gateway, body)
    assert engine.decode(engine.requests[0].tokens).endswith('"name": "calculator", "arguments": ')
    assert answer["choices"][0]["message"]["function_call"]["name"] == "calculator"


CLIENT_SIDE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bash_20250124": ({"name": "bash"}, {"command": "ls"}, "restart"),
    "text_editor_20250728": (
        {"name": "str_replace_based_edit_tool", "max_characters": 10000},
        {"command": "view", "path": "/a"},
        "old_str",
    ),
    "computer_20250124": (
        {"name": "computer", "display_width_px": 1024, "display_height_px": 768},
        {"action": "screenshot"},
        "display_width_px is 1024",
    ),
    "memory_20250818": ({"name": "memory"}, {"command": "view"}, "/memories"),
}


@pytest.mark.parametrize("kind", CLIENT_SIDE)
async def test_a_tool_that_anthropic_defines_and_the_client_runs_is_told(
    start_gateway: StartGateway, kind: str
) -> None:
    tool, arguments, told = CLIENT_SIDE[kind]
    gateway, engine = await start_gateway([call(tool["name"], **arguments), "done"])
    session = gateway.sessions.open("e")
    body = {"messages": HI, "max_tokens": 99, "tools": [{"type": kind, **tool}]}
    status, answer = await post(session, gateway, body, path="messages")
    assert status == 200, answer
    assert (answer["content"][0]["name"], answer["content"][0]["input"]) == (
        tool["name"],
        arguments,
    )
    assert told in engine.decode(engine.requests[0].tokens)


async def test_a_search_that_runs_at_anthropic_is_noticed(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    tool = {"type": "web_search_20250305", "name": "web_search"}
    body = {"messages": HI, "max_tokens": 9, "tools": [tool]}
    assert (await post(session, gateway, body, path="messages"))[0] == 200
    assert "web_search_20250305 runs at its provider" in session.notices[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [("no such file", "Error: no such file"), ("Error: Exit code 1", "Error: Exit code 1")],
)
async def test_the_policy_is_told_that_a_tool_failed(
    start_gateway: StartGateway, text: str, told: str
) -> None:
    gateway, engine = await start_gateway([call("bash", command="cat x"), "I see."])
    session = gateway.sessions.open("e")
    body: dict[str, Any] = {
        "messages": [*HI],
        "max_tokens": 99,
        "tools": [{"type": "bash_20250124", "name": "bash"}],
    }
    _, answer = await post(session, gateway, body, path="messages")
    use = answer["content"][0]
    failed = {"type": "tool_result", "tool_use_id": use["id"], "content": text, "is_error": True}
    body["messages"] += [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [failed]},
    ]
    assert (await post(session, gateway, body, path="messages"))[0] == 200
    assert f">\n{told}\n<" in engine.decode(engine.requests[1].tokens)
    assert session.turns[1].parent == 0


CLAUDE_CODE: dict[str, Any] = {
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "system", "content": "# Environment"},
    ],
    "tools": [
        {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}},
        {"name": "Later", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
    "metadata": {"user_id": "{}"},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
"""The request of Claude Code 2.1.330, with fewer words."""


async def test_claude_code_is_answered(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    session = gateway.sessions.open("e")
    status, stream = await post(session, gateway, CLAUDE_CODE, path="messages?beta=true")
    assert status == 200, stream
    assert session.notices == []
    assert session.metadata == {n: CLAUDE_CODE[n] for n in ("metadata", "context_management")}


async def test_a_text_block_has_an_empty_list_of_citations(start_gateway: StartGateway) -> None:
    """The published schema wants the key, and Vercel's client refuses a null there."""
    gateway, _ = await start_gateway("ok")
    body = {"messages": HI, "max_tokens": 9}
    _, answer = await post(gateway.sessions.open("e"), gateway, body, path="messages")
    assert answer["content"] == [{"type": "text", "text": "ok", "citations": []}]
    assert problems(answer, anthropic.types.Message) == []


LEFT_OUT: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown field": (
        "chat/completions",
        {"messages": HI, "colour": "red"},
        "left out: Unrecognized request argument supplied: colour",
    ),
    "another modality": (
        "chat/completions",
        {"messages": HI, "modalities": ["text", "audio"]},
        "left out: modalities is not supported: only text is generated",
    ),
    "a suffix": (
        "completions",
        {"prompt": "x", "suffix": "y"},
        "left out: suffix is not supported: the policy continues text and does not fill gaps",
    ),
    "a hosted tool": (
        "responses",
        {"input": "Hi", "tools": [{"type": "file_search"}]},
        "left out: tools[0]: tools of type 'file_search' are not supported",
    ),
    "a container": (
        "messages",
        {"messages": HI, "max_tokens": 9, "container": "c"},
        "left out: container is not supported: nothing is executed here",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
async def test_what_cannot_be_honoured_is_refused_or_left_out_as_configured(
    start_gateway: StartGateway, case: str
) -> None:
    path, body, notice = LEFT_OUT[case]
    strict, engine = await start_gateway("ok")
    assert (await post(strict.sessions.open("e"), strict, body, path=path))[0] == 400
    assert engine.num_requests == 0
    lenient, _ = await start_gateway("ok", unknown_fields="note")
    session = lenient.sessions.open("e")
    assert (await post(session, lenient, body, path=path))[0] == 200
    assert session.notices == [notice]


async def test_what_a_lenient_gateway_left_out_is_kept(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", unknown_fields="note")
    session = gateway.sessions.open("e")
    body = {"messages": HI, "colour": "red", "large": "x" * 20_000, "metadata": {"a": "b"}}
    await post(session, gateway, body)
    assert session.metadata == {"colour": "red", "metadata": {"a": "b"}}
    await post(session, gateway, {**body, "colour": "blue"})
    assert session.metadata["colour"] == "blue"
    url = f"{gateway.base_url.removesuffix('/v1')}/control/sessions/e"
    assert (await get(url, gateway.admin_key))[1]["metadata"] == session.metadata


async def test_what_a_policy_cannot_read_is_refused_by_a_lenient_gateway_too(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway("ok", unknown_fields="note")
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert (await post(gateway.sessions.open("e"), gateway, {"messages": [image]}))[0] == 400
    assert engine.num_requests == 0


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "two tools of one name": (
        "responses",
        {
            "input": "Hi",
            "tools": [
                {"type": "function", "name": "agents__close_agent"},
                {"type": "namespace", "name": "agents", "tools": [CLOSE]},
            ],
        },
        "tools",
    ),
    "a namespace without tools": (
        "responses",
        {"input": "Hi", "tools": [{"type": "namespace", "name": "n"}]},
        "tools[0]",
    ),
    "a custom tool without a name": (
        "responses",
        {"input": "Hi", "tools": [{"type": "custom"}]},
        "tools[0].function.name",
    ),
    "an allowed tool that is not there": (
        "responses",
        {
            "input": "Hi",
            "tools": [SHELL],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [CLOSE]},
        },
        "tool_choice",
    ),
    "a mode that is none": (
        "responses",
        {
            "input": "Hi",
            "tools": [SHELL],
            "tool_choice": {"type": "allowed_tools", "mode": "maybe", "tools": [SHELL]},
        },
        "tool_choice",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_tool_that_makes_no_sense_is_named(start_gateway: StartGateway, case: str) -> None:
    path, body, param = BAD[case]
    gateway, _ = await start_gateway("ok")
    status, answer = await post(gateway.sessions.open("e"), gateway, body, path=path)
    assert (status, answer["error"]["param"]) == (400, param)
