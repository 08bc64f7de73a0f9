"""Requests as large as a client likes: refused before they cost much, or worked on beside the loop."""

import asyncio
import http.client
import io
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.config import Quota
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.errors import TooManyTokensError
from areal_sdk.gateway.sessions import incremental_json
from areal_sdk.gateway.sessions.history import History, Placement
from areal_sdk.gateway.sessions.meaning import meaning
from areal_sdk.gateway.tokens.renderer import Prompt, TemplateInput
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.tokens.word_encoder import windows
from areal_sdk.gateway.untrusted import LARGE, LargeWork
from areal_sdk.gateway.wire import http as http_bodies
from areal_sdk.gateway.wire.http import body_limit
from areal_sdk.models import resolve_model
from tests.gateway.conftest import StartGateway
from tests.gateway.model_dirs import TEMPLATES
from tests.gateway.raw_connections import BODY, address, close
from tests.toolbox.gateway_requests import ALICE, call, get, post
from tests.toolbox.waiting import until

SPECIALS = [
    "<|im_end|>",
    "<|im_start|>",
    "</s>",
    "<think>",
    "<tool_call>",
    "<",
    "\n\n",
    " the",
    "é",
]


def asked(path: str, text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": messages},
        "completions": {"prompt": text},
        "responses": {"input": text},
        "responses/input_tokens": {"input": text},
        "messages": {"messages": messages, "max_tokens": 5},
        "messages/count_tokens": {"messages": messages},
    }
    return bodies[path]


PATHS = [
    "chat/completions",
    "completions",
    "responses",
    "responses/input_tokens",
    "messages",
    "messages/count_tokens",
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    start_gateway: StartGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, engine = await start_gateway("ok", max_context=256)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was encoded")

    for name in ("encode", "encode_document", "encode_continuation"):
        monkeypatch.setattr(gateway._completer.tokenizer, name, never)
    session = gateway.sessions.open("e")
    status, body = await post(session, gateway, asked(path, "long " * 600_000), path=path)
    assert status == 400, body
    assert "maximum context length is 256" in body["error"]["message"]
    if not path.startswith("messages"):
        assert body["error"]["code"] == "context_length_exceeded"
    assert engine.num_requests == 0


async def test_space_that_a_template_trims_counts_for_nothing(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", max_context=256)
    request = asked("chat/completions", " " * 300_000)
    status, body = await post(gateway.sessions.open("e"), gateway, request)
    assert status == 400
    assert "300003 tokens" in body["error"]["message"], "it was encoded, for it might have fitted"


async def test_more_messages_than_tokens_are_refused_unread(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", max_context=256)
    messages = [{"role": "user", "content": ""}] * 5000
    status, body = await post(gateway.sessions.open("e"), gateway, {"messages": messages})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


async def test_the_oldest_are_left_out_of_a_text_that_cannot_fit(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", max_context=256)
    items = [{"role": "user", "content": "long " * 600_000}, {"role": "user", "content": "Hi"}]
    body = {"input": items, "truncation": "auto"}
    session = gateway.sessions.open("e")
    status, reply = await post(session, gateway, body, path="responses")
    assert status == 200, reply
    assert "left out" in session.notices[0]


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens", "completions"])
async def test_others_are_answered_while_a_large_prompt_is_prepared(
    start_gateway: StartGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await start_gateway("ok", max_context=1_000_000, users=[ALICE])
    begun, go_on = threading.Event(), threading.Event()
    encode, encode_document = (
        gateway._completer.renderer.first,
        gateway._completer.tokenizer.encode_document,
    )

    def first(*args: Any, **options: Any) -> Prompt:
        begun.set()
        assert go_on.wait(20)
        return encode(*args, **options)

    def document(text: str, **options: Any) -> tuple[int, ...]:
        begun.set()
        assert go_on.wait(20)
        return encode_document(text, **options)

    session = gateway.sessions.open("e")
    with monkeypatch.context() as patch:
        patch.setattr(gateway._completer.renderer, "first", first)
        patch.setattr(gateway._completer.tokenizer, "encode_document", document)
        large = asyncio.create_task(post(session, gateway, asked(path, "word " * LARGE), path=path))
        await until(begun.is_set)
        assert (await get(gateway.base_url.replace("/v1", "/health")))[0] == 200
        assert not large.done()
        go_on.set()
        assert (await large)[0] == 200
    if path == "chat/completions":
        (turn,) = session.turns
        whole = gateway._completer.tokenizer.encode("word " * LARGE)
        assert len(turn.prompt_tokens) > len(whole)


@pytest.mark.parametrize("shape", list(TEMPLATES))
@settings(max_examples=4)
@given(data=st.data())
def test_a_large_text_has_the_tokens_that_it_has_piece_by_piece(
    model_dirs: dict[str, Path], shape: str, data: st.DataObject
) -> None:
    tokenizer = Tokenizer.load(model_dirs[shape])
    known = [*SPECIALS, *tokenizer.added]
    unit = data.draw(st.lists(st.one_of(st.sampled_from(known), st.text(max_size=4)), max_size=6))
    filler = data.draw(st.sampled_from(["x", "<", "ab ", "é"])) * data.draw(
        st.integers(LARGE - 12, LARGE + 12)
    )
    text = "".join(unit) + filler + "".join(unit)
    one_by_one = tokenizer.defuse(text[: len(text) // 2])  # shorter than a window: at once
    pattern = tokenizer._any_added
    assert [m.span() for m in tokenizer._matches(pattern, text)] == [
        m.span() for m in pattern.finditer(text)
    ]
    safe = tokenizer.defuse(text)
    assert tokenizer.encode(safe, most=10**9) == tokenizer.encode(safe)
    assert tokenizer.encode(text, most=10**9) == tokenizer.encode(text)
    assert tokenizer.encode_continuation(one_by_one, most=10**9) == tokenizer.encode_continuation(
        one_by_one
    )


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return Tokenizer.load(resolve_model("smollm2"))


@settings(max_examples=60)
@given(
    words=st.lists(st.one_of(st.sampled_from([" the", "s", " 12", "'s", "\n a", " "]), st.text())),
    size=st.integers(1, 40),
)
def test_a_text_cut_into_windows_has_the_tokens_of_the_whole(
    smollm2: Tokenizer, words: list[str], size: int
) -> None:
    text = "".join(words)
    cut = windows(text, size)
    assert "".join(cut) == text
    whole = smollm2._hf.encode(text, add_special_tokens=False).ids
    assert [i for part in cut for i in smollm2._hf.encode(part).ids] == whole


def test_a_long_text_is_refused_by_its_beginning(smollm2: Tokenizer) -> None:
    with pytest.raises(TooManyTokensError) as refused:
        smollm2.encode("some words " * 200_000, most=1000)
    assert 1000 < refused.value.num_tokens < 10_000
    assert len(smollm2.encode("some words " * 4000, most=10_000)) == 8001


async def test_counting_tells_how_long_a_text_beyond_the_context_is(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", max_context=8192, users=[ALICE])
    body = {"model": "m", **asked("messages/count_tokens", "word " * 8000)}
    status, counted, _ = await call(gateway, "/v1/messages/count_tokens", body, key=ALICE.api_key)
    assert status == 200
    assert counted["input_tokens"] > 3 * 8000, "three tokens a word"


@pytest.mark.parametrize("shape", list(TEMPLATES))
@settings(max_examples=40)
@given(text=st.one_of(st.text(), st.sampled_from(["A\u030a", "\u1100\u1161\u11a8", "x " * 99])))
def test_no_text_has_fewer_tokens_than_its_characters_say(
    model_dirs: dict[str, Path], shape: str, text: str
) -> None:
    tokenizer = Tokenizer.load(model_dirs[shape])
    most = tokenizer.most_characters_a_token
    if most is not None:
        assert len(text) <= most * len(tokenizer.encode(tokenizer.defuse(text)))


@pytest.mark.parametrize("path", ["messages/count_tokens", "responses/input_tokens"])
async def test_counting_tokens_counts_against_the_quota(
    start_gateway: StartGateway, path: str
) -> None:
    few = User("few", "sk-few-0123456789abcdef", Quota(requests_per_minute=2))
    gateway, _ = await start_gateway("ok", users=[few])
    body = {"model": "m", **asked(path, "Hi")}
    for key in (few.api_key, f"{few.api_key}/name"):
        assert (await call(gateway, f"/v1/{path}", body, key=key))[0] == 200
    status, _, headers = await call(gateway, f"/v1/{path}", body, key=few.api_key)
    assert status == 429
    assert int(headers["Retry-After"]) > 0


def test_the_largest_body_follows_from_the_context() -> None:
    assert body_limit(100, 16) == 4 * 2**20, "for tools and metadata"
    assert body_limit(32_768, 64) == 32_768 * 64 * 6
    assert body_limit(1_000_000, 128) == 32 * 2**20
    assert body_limit(100, None) == 32 * 2**20


async def test_a_body_that_says_it_is_too_long_is_refused_unread(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE])
    reader, writer = await asyncio.open_connection("127.0.0.1", address(gateway))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 50000000\r\n"
        + f"Authorization: Bearer {ALICE.api_key}\r\n\r\n".encode()
    )
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode()
    assert " 413 " in head.splitlines()[0]
    await close(writer)


async def test_a_client_that_sends_everything_before_it_reads_sees_the_refusal(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=[ALICE])

    def send() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", address(gateway), timeout=30)
        headers = {"Authorization": f"Bearer {ALICE.api_key}"}
        connection.request("POST", "/v1/chat/completions", b" " * 12_000_000, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert await asyncio.to_thread(send) == 413


async def test_who_never_ends_a_refused_body_is_cut_off(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.wire.http.UNREAD_BODY_S", 0.1)
    gateway, _ = await start_gateway("ok", users=[ALICE])
    reader, writer = await asyncio.open_connection("127.0.0.1", address(gateway))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 50000000\r\n"
        + f"Authorization: Bearer {ALICE.api_key}\r\n\r\n".encode()
    )
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)

    async def send_for_ever() -> None:
        while True:
            writer.write(b" " * 1000)
            await writer.drain()
            await asyncio.sleep(0)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_for_ever(), 20)
    await close(writer)


async def test_too_many_choices_are_refused(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok")
    body = {"prompt": ["x"] * 100, "n": 128, "best_of": 128}
    status, reply = await post(gateway.sessions.open("e"), gateway, body, path="completions")
    assert (status, reply["error"]["param"]) == (400, "prompt")


async def test_a_body_that_stops_coming_is_given_up(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.wire.http.BODY_S", 0.05)
    gateway, _ = await start_gateway("ok", users=[ALICE])

    async def half() -> Any:
        yield b'{"model": '
        await asyncio.Event().wait()

    headers = {"x-api-key": ALICE.api_key}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/chat/completions", data=half()) as reply,
    ):
        assert reply.status == 408
    assert (await call(gateway, body=BODY, key=ALICE.api_key))[0] == 200


@pytest.mark.parametrize("path", ["chat/completions", "responses/input_tokens", "messages"])
async def test_others_are_answered_while_many_messages_are_placed(
    start_gateway: StartGateway, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30,000 messages take seconds to be placed: Python works on each."""
    gateway, _ = await start_gateway("ok", max_context=1_000_000, users=[ALICE])
    begun, go_on = threading.Event(), threading.Event()
    place = History.place

    def slow_place(history: History, *args: Any, **options: Any) -> Placement:
        begun.set()
        assert go_on.wait(20)
        return place(history, *args, **options)

    session = gateway.sessions.open("e")
    body = asked(path, "")
    key = "input" if "input" in body else "messages"
    body[key] = [{"role": "user", "content": "x"}] * 30_000
    with monkeypatch.context() as patch:
        patch.setattr(History, "place", slow_place)
        large = asyncio.create_task(post(session, gateway, body, path=path))
        await until(begun.is_set)
        assert (await get(gateway.base_url.replace("/v1", "/health")))[0] == 200
        assert not large.done()
        go_on.set()
        status, reply = await large
    assert status == 200, reply


async def test_requests_of_a_session_are_placed_one_after_the_other(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await start_gateway(["first", "second"], max_context=1_000_000)
    begun, go_on = threading.Event(), threading.Event()
    placed: list[int] = []
    place = History.place

    def slow_place(history: History, messages: Any, **options: Any) -> Placement:
        if len(messages) > 1:
            begun.set()
            assert go_on.wait(20)
        placed.append(len(messages))
        return place(history, messages, **options)

    monkeypatch.setattr(History, "place", slow_place)
    session = gateway.sessions.open("e")
    many = {"messages": [{"role": "user", "content": "x"}] * 20_000}
    large = asyncio.create_task(post(session, gateway, many))
    await until(begun.is_set)
    small = asyncio.create_task(post(session, gateway, asked("chat/completions", "Hi")))
    assert (await get(gateway.base_url.replace("/v1", "/health")))[0] == 200
    assert not placed, "the small one waits, and the loop does not"
    go_on.set()
    assert [(await large)[0], (await small)[0]] == [200, 200]
    assert placed == [20_000, 1]


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages"])
@pytest.mark.parametrize("stops", [["x"] * 65, ["x" * 1025]], ids=["many", "long"])
async def test_stop_strings_have_a_limit(
    start_gateway: StartGateway, path: str, stops: list[str]
) -> None:
    gateway, engine = await start_gateway("ok")
    name = "stop_sequences" if path == "messages" else "stop"
    body = {**asked(path, "Hi"), name: stops}
    status, reply = await post(gateway.sessions.open("e"), gateway, body, path=path)
    assert status == 400
    assert f"{name} may hold up to 64 strings" in reply["error"]["message"]
    assert engine.num_requests == 0


async def test_long_arguments_mean_what_their_text_says(start_gateway: StartGateway) -> None:
    """Reading 10 MB of JSON and writing it in order takes nine seconds."""

    def said(arguments: str) -> dict[str, Any]:
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    short, long = ('{"a": %s1}' % (" " * n) for n in (1, 1_000_000))
    assert meaning(said(short)) == meaning(said('{"a":1}'))
    assert meaning(said(long)) != meaning(said('{"a":1}'))
    assert meaning(said(f" {long}")) == meaning(said(long))


async def test_the_longest_end_that_fits_is_found_in_few_attempts(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaving one message out after another rendered a long conversation hundreds of times."""
    gateway, engine = await start_gateway("ok", max_context=512)
    attempts = 0
    first = gateway._completer.renderer.first

    def counted(*args: Any, **options: Any) -> Prompt:
        nonlocal attempts
        attempts += 1
        return first(*args, **options)

    monkeypatch.setattr(gateway._completer.renderer, "first", counted)
    items = [{"role": "user", "content": f"question {n}"} for n in range(400)]
    body = {"input": items, "truncation": "auto"}
    session = gateway.sessions.open("e")
    status, reply = await post(session, gateway, body, path="responses")
    assert status == 200, reply
    assert attempts < 20
    assert not session.truncated
    (request,) = engine.requests
    kept = gateway._completer.tokenizer.decode(request.tokens)
    oldest = min(n for n in range(400) if f"question {n}<" in kept or f"question {n}\n" in kept)
    longer = first(TemplateInput(tuple(items[oldest - 1 :]), ()), opening="")
    assert len(request.tokens) < 512 <= len(longer.tokens), "one more would not have fitted"


async def test_what_a_client_sends_makes_no_long_notices(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", unknown_fields="note", max_context=100_000)
    session = gateway.sessions.open("e")
    body = asked("chat/completions", "Hi")
    assert (await post(session, gateway, {**body, "logit_bias": {str(n): 1 for n in range(300)}}))[
        0
    ] == 200
    (notice,) = session.notices
    assert "logit_bias" in notice
    unknown = {f"field_{n}": 1 for n in range(1000)} | {"x" * 5000: 1}
    assert (await post(session, gateway, body | unknown))[0] == 200
    assert len(session.notices) == 100
    assert max(map(len, session.notices)) <= 1000


OBJECTS = '{"messages":[{"role":"user","content":"hi"}],"metadata":[' + "{}," * 400_000 + "1]}"
ITEMS = '{"messages":[' + "0," * 400_000 + '{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize("path", ["chat/completions", "messages/count_tokens", "responses"])
@pytest.mark.parametrize("body", [OBJECTS, ITEMS], ids=["objects", "items"])
async def test_more_values_than_the_context_can_hold_are_refused_unparsed(
    start_gateway: StartGateway, path: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await start_gateway("ok", max_context=1024, users=[ALICE])

    def never(_: Any) -> Any:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(http_bodies, "loads", never)
    monkeypatch.setattr(incremental_json, "loads", never)
    url = f"{gateway.base_url}/{path}"
    headers = {"Authorization": f"Bearer {ALICE.api_key}"}
    data = io.BytesIO(body.encode())
    async with aiohttp.ClientSession() as http, http.post(url, data=data, headers=headers) as reply:
        answer = await reply.json()
    assert reply.status == 413, answer
    assert "more than 200,000 values" in answer["error"]["message"]


async def test_text_that_looks_like_values_is_text(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", max_context=256, users=[ALICE])
    text = '{"a": [1, 2, "b"]},\n' * 60_000
    assert text.count(",") + text.count("[") + text.count("{") > 200_000
    status, body = await post(gateway.sessions.open("e"), gateway, asked("chat/completions", text))
    assert status == 400, body
    assert body["error"]["code"] == "context_length_exceeded"


async def test_many_small_messages_are_placed_beside_the_loop(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await start_gateway("ok", max_context=100_000)
    threads: list[threading.Thread] = []
    place = History.place

    def noting(self: History, *args: Any, **options: Any) -> Placement:
        threads.append(threading.current_thread())
        return place(self, *args, **options)

    monkeypatch.setattr(History, "place", noting)
    session = gateway.sessions.open("e")
    few = {"messages": [{"role": "user", "content": "hi"}] * 3}
    many = {"messages": [{"role": "user", "content": "hi"}] * 3000}
    for body in (few, many):
        assert (await post(session, gateway, body))[0] == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_threads_take_short_turns_while_large_work_runs() -> None:
    usual = sys.getswitchinterval()
    large = LargeWork()
    try:
        both = [large.run(LARGE + 1, sys.getswitchinterval) for _ in range(2)]
        assert all(interval < usual for interval in await asyncio.gather(*both))
        assert await large.run(LARGE, sys.getswitchinterval) == usual
    finally:
        large.close()
    assert sys.getswitchinterval() == usual
