"""A call through `--upstream` is kept: all of the answer, what was asked, and which turn it
continues."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.gateway.sessions.external import ExternalSession
from areal_sdk.gateway.sessions.history import History, Placement
from areal_sdk.rollout.callers import to_episode
from areal_sdk.types import ErrorKind, FinishReason, Turn
from areal_sdk_upstream import provider as provider_module
from tests.toolbox.gateway_requests import ALICE, HI
from tests.toolbox.upstream import upstream_gateway
from tests.toolbox.waiting import until

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

Reply = dict[str, Any] | Sequence[dict[str, Any]]
"""A body, or the events of a stream."""


class Provider:
    """Answers with what a test gives it, in order."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.breaks_off = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        reply = self.replies.pop(0)
        if isinstance(reply, dict):
            return web.json_response(reply)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in reply:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if self.breaks_off:
            assert request.transport is not None
            request.transport.close()
        return response


class Kept:
    def __init__(self) -> None:
        self.ended: list[ExternalSession] = []

    def opened(self, live: ExternalSession) -> None: ...

    def finished(self, live: ExternalSession) -> None:
        self.ended.append(live)


class Client:
    """Alice's, through our gateway."""

    def __init__(self, gateway: BackendGateway, provider: Provider) -> None:
        self.gateway = gateway
        self.provider = provider
        self.kept = Kept()
        gateway.external.observe(self.kept)

    async def post(
        self, path: str, body: dict[str, Any], reply: Reply | None = None, *, session: str = "/e"
    ) -> tuple[int, dict[str, str], str]:
        if reply is not None:
            self.provider.replies.append(reply)
        headers = {"Authorization": f"Bearer {ALICE.api_key}{session}"}
        url = f"{self.gateway.base_url}/{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, json=body) as answer,
        ):
            return answer.status, dict(answer.headers), await answer.text()

    @property
    def turns(self) -> Sequence[Turn]:
        live = self.gateway.external.get("alice/e")
        assert live is not None
        return live.session.turns


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    provider = Provider()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    gateway = upstream_gateway(url, users=[ALICE])
    await gateway.start()
    yield Client(gateway, provider)
    await gateway.aclose()
    await runner.cleanup()


def chat(text: str, *, id: str = "chatcmpl-1", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": id, "object": "chat.completion", "choices": [choice], "usage": usage}


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-9", "object": "chat.completion.chunk", "choices": [choice]}


ANTHROPIC_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 7}}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "Add them."},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Well:"}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
    },
    *(
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        }
        for piece in ('{"a": 1', ', "b": 2}')
    ),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]


async def test_calls_and_thinking_of_an_anthropic_stream_are_kept(client: Client) -> None:
    body = {"model": "m", "messages": HI, "max_tokens": 9, "stream": True}
    await client.post("messages", body, ANTHROPIC_EVENTS)
    (turn,) = client.turns
    assert turn.message["content"] == "Well:"
    assert turn.message["reasoning_content"] == "Add them."
    (call,) = turn.message["tool_calls"]
    assert call["id"] == "toolu_1"
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert turn.finish_reason is FinishReason.STOP
    assert turn.details["usage"] == {"input_tokens": 7, "output_tokens": 5}


async def test_an_anthropic_conversation_is_linked_and_kept_once(client: Client) -> None:
    body: dict[str, Any] = {"model": "m", "messages": HI, "max_tokens": 9, "stream": True}
    await client.post("messages", body, ANTHROPIC_EVENTS)
    said = [
        {"type": "thinking", "thinking": "Add them.", "signature": "s"},
        {"type": "text", "text": "Well:"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 2, "a": 1}},
    ]
    result = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3", "is_error": True}]
    more = [
        *HI,
        {"role": "assistant", "content": said},
        {"role": "user", "content": result},
    ]
    reply = {"id": "msg_2", "content": [{"type": "text", "text": "3."}], "stop_reason": "end_turn"}
    await client.post("messages", {"model": "m", "messages": more, "max_tokens": 9}, reply)
    first, second = client.turns
    assert (first.parent, second.parent, second.fork) == (None, 0, None)
    assert second.new_messages == (
        {"role": "tool", "tool_call_id": "toolu_1", "content": "3", "is_error": True},
    )


async def test_all_choices_and_the_reasoning_of_a_chat_stream_are_kept(client: Client) -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "add", "arguments": '{"a"'}}
    rest = {"index": 0, "function": {"arguments": ": 1}"}}
    events = [
        chunk(0, role="assistant", reasoning_content="Hm"),
        chunk(1, content="No"),
        chunk(0, reasoning_content="m."),
        chunk(0, content="Yes"),
        chunk(0, tool_calls=[call]),
        chunk(0, tool_calls=[rest]),
        chunk(0, "tool_calls"),
        chunk(1, "length", content="!"),
        {"id": "chatcmpl-9", "choices": [], "usage": {"total_tokens": 8}},
    ]
    body = {"model": "m", "messages": HI, "n": 2, "stream": True}
    await client.post("chat/completions", body, events)
    yes, no = client.turns
    assert yes.message["reasoning_content"] == "Hmm."
    assert yes.message["content"] == "Yes"
    assert yes.message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert no.message["content"] == "No!"
    assert no.finish_reason is FinishReason.LENGTH
    assert yes.details["usage"] == {"total_tokens": 8}
    assert yes.new_messages == no.new_messages == tuple(HI)


async def test_what_was_asked_for_is_kept(client: Client) -> None:
    asked = {"model": "m", "temperature": 0.3, "metadata": {"user": "u1"}, "tool_choice": "auto"}
    await client.post("chat/completions", {**asked, "messages": HI, "tools": [TOOL]}, chat("Hello"))
    (turn,) = client.turns
    assert turn.details["request"] == asked
    assert turn.details["tools"] == [TOOL]
    assert turn.details["usage"]["completion_tokens"] == 2


async def test_a_later_turn_keeps_only_what_is_new(client: Client) -> None:
    await client.post("chat/completions", {"model": "m", "messages": HI}, chat("Hello"))
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    more = [
        *HI,
        {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "user", "content": [{"type": "text", "text": "See"}, image]},
    ]
    reply = chat("Nice", id="chatcmpl-2")
    await client.post("chat/completions", {"model": "m", "messages": more}, reply)
    last = [*more, {"role": "assistant", "content": "Nice"}, {"role": "user", "content": "Bye"}]
    reply = chat("Bye", id="chatcmpl-3")
    await client.post("chat/completions", {"model": "m", "messages": last}, reply)
    assert [turn.parent for turn in client.turns] == [None, 0, 1]
    assert [len(turn.new_messages) for turn in client.turns] == [1, 1, 1]


async def test_an_edited_conversation_says_why_it_is_no_continuation(client: Client) -> None:
    await client.post("chat/completions", {"model": "m", "messages": HI}, chat("Hello"))
    more = [*HI, {"role": "assistant", "content": "Goodbye"}, {"role": "user", "content": "?"}]
    await client.post("chat/completions", {"model": "m", "messages": more}, chat("!", id="c-2"))
    assert client.turns[1].parent is None
    assert client.turns[1].fork is not None


def item(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": index, **fields}


RESPONSE_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
    item(0, "output_item.added", item={"type": "message", "role": "assistant", "content": []}),
    item(0, "output_text.delta", delta="Wel"),
    item(0, "output_text.delta", delta="l:"),
    item(1, "output_item.added", item={"type": "function_call", "call_id": "c1", "name": "add"}),
    item(1, "function_call_arguments.delta", delta='{"a": 1}'),
]


@pytest.mark.parametrize(
    ("path", "body", "events", "text"),
    [
        ("responses", {"input": "Hi"}, RESPONSE_EVENTS, "Well:"),
        ("messages", {"messages": HI, "max_tokens": 9}, ANTHROPIC_EVENTS[:6], "Well:"),
        (
            "chat/completions",
            {"messages": HI},
            [chunk(content="Wel"), chunk(content="l:")],
            "Well:",
        ),
    ],
)
async def test_what_came_of_a_stream_that_broke_off_is_kept(
    client: Client, path: str, body: dict[str, Any], events: Reply, text: str
) -> None:
    client.provider.breaks_off = True
    _, _, seen = await client.post(path, {"model": "m", "stream": True, **body}, events)
    (turn,) = client.turns
    assert turn.message["content"] == text
    assert turn.finish_reason is FinishReason.ABORT
    assert "broke off" in seen, "the client is told as its own API tells errors"
    assert ("event: error" in seen) == (path == "messages")


async def test_an_incomplete_response_is_kept_with_its_reason(client: Client) -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"text": "Half"}]}]
    last = {
        "id": "resp_1",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": output,
        "usage": {"total_tokens": 4},
    }
    events = [*RESPONSE_EVENTS, {"type": "response.incomplete", "response": last}]
    await client.post("responses", {"model": "m", "input": "Hi", "stream": True}, events)
    (turn,) = client.turns
    assert turn.message["content"] == "Half"
    assert turn.finish_reason is FinishReason.LENGTH
    assert turn.details["usage"] == {"total_tokens": 4}


async def test_responses_are_linked_by_items_and_by_id(client: Client) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "Hmm."}]}
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    first = {"id": "resp_1", "status": "completed", "output": [reasoning, search, call]}
    await client.post("responses", {"model": "m", "input": "Hi", "instructions": "Be."}, first)
    result = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    items = [{"role": "user", "content": "Hi"}, reasoning, search, call, result]
    text = {"type": "message", "role": "assistant", "content": [{"text": "3."}]}
    second = {"id": "resp_2", "status": "completed", "output": [text]}
    body: dict[str, Any] = {"model": "m", "input": items, "instructions": "Be."}
    await client.post("responses", body, second)
    third = {"id": "resp_3", "status": "completed", "output": [text]}
    body = {"model": "m", "input": "And?", "previous_response_id": "resp_2"}
    await client.post("responses", body, third)
    one, two, three = client.turns
    assert one.message["reasoning_content"] == "Hmm."
    assert one.message["output"] == [search], "what a chat message has no place for"
    assert [m["role"] for m in one.new_messages] == ["system", "user"]
    assert (two.parent, three.parent) == (0, 1)
    assert two.new_messages == ({"role": "tool", "tool_call_id": "c1", "content": "3"},)
    assert three.new_messages == ({"role": "user", "content": "And?"},)


async def test_each_of_several_prompts_keeps_its_own_answers(client: Client) -> None:
    choices = [{"index": i, "text": f"t{i}", "finish_reason": "stop"} for i in range(4)]
    body = {"model": "m", "prompt": ["one", "two"], "n": 2}
    await client.post("completions", body, {"id": "cmpl-1", "choices": choices})
    assert [t.new_messages[0]["content"] for t in client.turns] == ["one", "one", "two", "two"]
    assert [t.message["content"] for t in client.turns] == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
async def test_a_prompt_of_tokens_is_kept_as_tokens(client: Client, prompt: list[Any]) -> None:
    choice = {"index": 0, "text": "t", "finish_reason": "stop"}
    body = {"model": "m", "prompt": prompt}
    await client.post("completions", body, {"id": "cmpl-1", "choices": [choice]})
    (turn,) = client.turns
    assert turn.new_messages[0]["tokens"] == [5, 6, 7]


async def test_an_id_that_the_provider_repeats_takes_no_reward(client: Client) -> None:
    _, first, _ = await client.post("chat/completions", {"model": "m", "messages": HI}, chat("A"))
    await client.post("chat/completions", {"model": "m", "messages": HI}, chat("B"))
    status, _, said = await client.post("reward", {"reward": 1.0, "turn": "chatcmpl-1"})
    assert status == 400
    assert "x-areal-reply" in said
    body = {"reward": 1.0, "turn": first["x-areal-reply"]}
    status, _, said = await client.post("reward", body)
    assert status == 200, said
    live = client.gateway.external.get("alice/e")
    assert live is not None
    assert [(posted.turn, posted.reward) for posted in live.session.rewards] == [(0, 1.0)]


async def test_an_id_that_repeats_in_another_session_takes_no_reward(client: Client) -> None:
    body = {"model": "m", "messages": HI}
    await client.post("chat/completions", body, chat("A"), session="/one")
    _, second, _ = await client.post("chat/completions", body, chat("B"), session="/two")
    reward: dict[str, Any] = {"reward": 1.0, "turn": "chatcmpl-1"}
    status, _, said = await client.post("reward", reward, session="")
    assert status == 400
    assert "2 sessions" in said
    reward["turn"] = second["x-areal-reply"]
    status, _, said = await client.post("reward", reward, session="")
    assert status == 200, said
    live = client.gateway.external.get("alice/two")
    assert live is not None
    assert len(live.session.rewards) == 1


async def test_bodies_that_are_no_conversation_harm_nothing(client: Client) -> None:
    bodies: list[dict[str, Any]] = [
        {"model": "m"},
        {"model": "m", "messages": "x"},
        {"model": "m", "messages": [1, None, {"role": "user", "content": 7}]},
        {"model": "m", "messages": [{"role": "assistant", "content": [{"type": "text"}, 3]}]},
        {"model": "m", "tools": {"a": 1}, "messages": HI},
    ]
    for number, body in enumerate(bodies):
        reply = chat("ok", id=f"chatcmpl-{number}")
        status, _, said = await client.post("chat/completions", body, reply)
        assert status == 200, said
    assert len(client.turns) == len(bodies)


_UNREADABLE: list[Callable[[], Reply]] = [
    lambda: {"id": "x", "choices": 5},
    lambda: {"object": "list", "data": []},
    lambda: [{"type": "message_start"}],
]


@pytest.mark.parametrize("make", _UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_told(
    client: Client, make: Callable[[], Reply]
) -> None:
    reply = make()
    body = {"model": "m", "messages": HI, "stream": not isinstance(reply, dict)}
    status, _, _ = await client.post("chat/completions", body, reply)
    assert status == 200, "the client gets what the provider said, whatever it was"
    live = client.gateway.external.get("alice/e")
    assert live is not None
    assert not live.session.turns
    assert any("could not be read" in notice for notice in live.session.notices)


def padded_stream(num_bytes: int) -> list[dict[str, Any]]:
    """The events of a short answer with a tool call at its end; with what surrounds it, so many bytes."""
    call = {"index": 0, "id": "c", "type": "function"}
    call["function"] = {"name": "submit", "arguments": '{"answer": 42}'}
    words = [{**chunk(content="so "), "obfuscation": "x" * 100_000}] * (num_bytes // 100_000)
    return [*words, chunk(tool_calls=[call]), chunk(finish="tool_calls")]


async def test_the_end_of_an_answer_is_kept_however_much_surrounds_its_words(
    client: Client,
) -> None:
    reply = padded_stream(12_000_000)
    await client.post("chat/completions", {"model": "m", "messages": HI, "stream": True}, reply)
    (turn,) = client.turns
    assert turn.finish_reason is FinishReason.STOP
    assert turn.message["content"] == "so " * 120
    assert turn.message["tool_calls"][0]["function"]["name"] == "submit"


async def test_a_stream_of_which_only_the_beginning_is_kept_is_a_fault_by_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_module, "_MOST_ANSWER_BYTES", 1_000_000)
    body = {"model": "m", "messages": HI, "stream": True}
    _, _, said = await client.post("chat/completions", body, padded_stream(2_000_000))
    assert "submit" in said, "the client has all of it"
    live = client.gateway.external.get("alice/e")
    assert live is not None
    [fault] = live.session.faults
    assert "a streamed answer is over 0.954 MiB" in fault
    assert fault in live.session.notices
    outcome = to_episode(live).outcome
    assert (outcome.error, outcome.message) == (ErrorKind.INFRASTRUCTURE, fault)
    assert [turn.finish_reason for turn in client.turns] == [FinishReason.ABORT]


async def test_others_are_answered_while_a_large_call_is_kept(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    place = History.place

    def slow_place(history: History, *args: Any, **options: Any) -> Placement:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(20)
        return place(history, *args, **options)

    monkeypatch.setattr(History, "place", slow_place)
    many = {"model": "m", "messages": HI * 5000}
    large = asyncio.create_task(client.post("chat/completions", many, chat("first")))
    await until(begun.is_set)
    small = asyncio.create_task(
        client.post("chat/completions", {"model": "m", "messages": HI}, chat("second", id="2"))
    )
    url = client.gateway.base_url.replace("/v1", "/health")
    async with aiohttp.ClientSession() as http, http.get(url) as reply:
        assert reply.status == 200
    assert not client.turns
    go_on.set()
    assert [(await large)[0], (await small)[0]] == [200, 200]
    assert [turn.message["content"] for turn in client.turns] == ["first", "second"]
