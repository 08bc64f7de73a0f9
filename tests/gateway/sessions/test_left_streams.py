"""Clients that stop a stream midway: what was sampled until then is a turn, and can be rewarded."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.external import ExternalSession
from areal_sdk.testing import Fault, Reply, ScriptedEngine, scripted_logprob
from areal_sdk.types import FinishReason, ForkReason
from tests.gateway.conftest import StartGateway
from tests.gateway.raw_connections import BODY, busy, idle
from tests.toolbox.gateway_requests import ALICE, HI, Watcher, call
from tests.toolbox.waiting import until

TEXT = "never ends, for it hangs"
SAID = "never"
NUM_DELIVERED = 4
"""Tokens of it, which say `SAID`."""
HANGS = Reply(TEXT, fault=Fault.HANG, after=NUM_DELIVERED)
NAMED = f"{ALICE.api_key}/chat"


@asynccontextmanager
async def streaming(
    gateway: Gateway,
    body: Any = None,
    *,
    path: str = "chat/completions",
    key: str = ALICE.api_key,
    retry: int = 0,
) -> AsyncIterator[tuple[str, str]]:
    """The reply's id and its text, read as far as it comes; then its client leaves."""
    headers = {"x-api-key": key, "x-stainless-retry-count": str(retry)}
    asked = {**(BODY if body is None else body), "stream": True}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{gateway.base_url}/{path}", json=asked) as reply,
    ):
        assert reply.status == 200
        said, reply_id = "", ""
        while len(said) < len(SAID) * asked.get("n", 1):
            line = await asyncio.wait_for(reply.content.readline(), 20)
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            reply_id = reply_id or event.get("id") or event["message"]["id"]
            if path == "messages":
                said += event.get("delta", {}).get("text", "")
            else:
                said += event["choices"][0]["delta"].get("content") or ""
        yield reply_id, said


def sampled(engine: ScriptedEngine) -> tuple[int, ...]:
    """The tokens that were delivered."""
    return engine.encode(TEXT)[:NUM_DELIVERED]


async def reward(gateway: Gateway, body: Any, *, key: str = ALICE.api_key) -> tuple[int, Any]:
    status, answer, _ = await call(gateway, "/v1/reward", body, key=key)
    return status, answer


def assert_partial(live: ExternalSession, engine: ScriptedEngine) -> None:
    (turn,) = live.session.turns
    assert turn.output_tokens == sampled(engine)
    assert turn.logprobs == tuple(scripted_logprob(t, i) for i, t in enumerate(turn.output_tokens))
    assert turn.versions == (0,) * NUM_DELIVERED
    assert turn.finish_reason is FinishReason.ABORT
    assert turn.text == SAID
    assert live.session.faults == []
    assert not live.session.truncated


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_stream_that_its_user_stopped_is_rewarded_by_its_reply(
    start_gateway: StartGateway, path: str
) -> None:
    gateway, engine = await start_gateway(HANGS, users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, {**BODY, "max_tokens": 99}, path=path) as (reply_id, _):
        pass
    status, answer = await reward(gateway, {"turn": reply_id, "reward": -1})
    assert (status, answer.get("turn")) == (200, 0), answer
    live = await watcher.next_ended()
    assert_partial(live, engine)
    assert [posted.reward for posted in live.session.rewards] == [-1]
    assert engine.num_active == 0


async def test_a_verdict_on_the_episode_keeps_what_its_user_stopped(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway(HANGS, users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, key=NAMED):
        pass
    assert (await reward(gateway, {"reward": -1}, key=NAMED))[0] == 200
    assert_partial(await watcher.next_ended(), engine)


async def test_a_verdict_keeps_what_is_delivered_while_the_stream_still_runs(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway(HANGS, users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, key=NAMED):
        assert (await reward(gateway, {"reward": -1}, key=NAMED))[0] == 200
        assert_partial(await watcher.next_ended(), engine)
        await until(idle(gateway))


async def test_a_reward_for_a_reply_that_is_still_sampled_is_asked_for_again(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.gateway.control._REPLY_WAIT_S", 0.01)
    gateway, _ = await start_gateway(HANGS, users=[ALICE])
    Watcher(gateway)
    async with streaming(gateway) as (reply_id, _):
        status, answer, headers = await call(
            gateway, "/v1/reward", {"turn": reply_id, "reward": 1}, key=ALICE.api_key
        )
        assert (status, answer["error"]["code"]) == (409, "reply_in_progress")
        assert headers["x-should-retry"] == "true"
    assert (await reward(gateway, {"turn": reply_id, "reward": 1}))[0] == 200


async def test_the_retry_of_a_stream_that_broke_is_the_only_turn(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway([HANGS, "whole"], users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, key=NAMED):
        pass
    await until(idle(gateway))
    async with streaming(gateway, key=NAMED, retry=1) as (_, said):
        assert said.startswith("whole")
        await until(idle(gateway))
    assert (await reward(gateway, {"reward": 1}, key=NAMED))[0] == 200
    live = await watcher.next_ended()
    assert [turn.text for turn in live.session.turns] == ["whole"]
    assert live.session.turns[0].fork is None
    assert live.session.num_sampled == len(live.session.turns[0].output_tokens)


async def test_a_break_that_is_noticed_after_its_retry_began_leaves_no_turn(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway([HANGS, "whole"], users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, key=NAMED), streaming(gateway, key=NAMED, retry=1):
        await until(lambda: engine.num_active == 1)
    await until(idle(gateway))
    assert (await reward(gateway, {"reward": 1}, key=NAMED))[0] == 200
    live = await watcher.next_ended()
    assert [turn.text for turn in live.session.turns] == ["whole"]


async def test_asking_the_same_again_is_no_retry(start_gateway: StartGateway) -> None:
    """Regenerate: both are what the user saw."""
    gateway, _ = await start_gateway([HANGS, "whole"], users=[ALICE])
    watcher = Watcher(gateway)
    for _ in range(2):
        async with streaming(gateway, key=NAMED):
            pass
        await until(idle(gateway))
    assert (await reward(gateway, {"reward": 1}, key=NAMED))[0] == 200
    live = await watcher.next_ended()
    assert [turn.text for turn in live.session.turns] == [SAID, "whole"]
    assert live.session.turns[1].fork is ForkReason.RESAMPLED


async def test_a_conversation_goes_on_from_what_was_said_before_the_stop(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway([HANGS, "more"], users=[ALICE])
    Watcher(gateway)
    async with streaming(gateway, key=NAMED) as (_, said):
        pass
    await until(idle(gateway))
    messages = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    assert (await call(gateway, body={"model": "m", "messages": messages}, key=NAMED))[0] == 200
    live = gateway.external.get("alice/chat")
    assert live is not None
    first, second = live.session.turns
    assert second.parent == 0
    assert second.fork is None
    assert second.prompt_tokens[: first.num_tokens] == first.tokens


async def test_what_an_agent_of_a_run_stopped_is_in_its_episode(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway(HANGS)
    session = gateway.sessions.open("e")
    async with streaming(gateway, key=session.key):
        pass
    await until(idle(gateway))
    (turn,) = session.close()
    assert turn.output_tokens == sampled(engine)


async def test_a_stop_before_the_first_token_is_no_turn(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(Reply("x", fault=Fault.HANG, after=0), users=[ALICE])
    watcher = Watcher(gateway)
    async with aiohttp.ClientSession(headers={"x-api-key": ALICE.api_key}) as http:
        asked = http.post(f"{gateway.base_url}/chat/completions", json={**BODY, "stream": True})
        task = asyncio.create_task(asked._coro)
        await until(busy(gateway))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await watcher.next_ended()).session.turns == []


async def test_choices_are_rewarded_by_their_number(start_gateway: StartGateway) -> None:
    """Turns are in the order in which they ended, choices are not."""
    slow_first = [Reply("a longer one"), Reply("b")]
    gateway, _ = await start_gateway(slow_first, users=[ALICE])
    watcher = Watcher(gateway)
    _, body, _ = await call(gateway, body={**BODY, "n": 2}, key=ALICE.api_key)
    by_text = {c["message"]["content"]: c["index"] for c in body["choices"]}
    asked = {"turn": body["id"], "reward": 1}
    status, refused = await reward(gateway, asked)
    assert status == 400
    assert "choice" in refused["error"]["message"]
    for wrong in (2, -1, True, "0"):
        assert (await reward(gateway, {**asked, "choice": wrong}))[0] == 400
    assert (await reward(gateway, {"reward": 1, "choice": 0}, key=ALICE.api_key))[0] in (400, 404)
    for text, value in (("b", 1.0), ("a longer one", -1.0)):
        asked = {"turn": body["id"], "choice": by_text[text], "reward": value}
        assert (await reward(gateway, asked))[0] == 200
    live = await watcher.next_ended()
    given = {p.turn: p.reward for p in live.session.rewards}
    assert {live.session.turns[i].text: r for i, r in given.items() if i is not None} == {
        "b": 1.0,
        "a longer one": -1.0,
    }


async def test_choices_of_a_stream_that_was_stopped_are_rewarded_by_their_number(
    start_gateway: StartGateway,
) -> None:
    gateway, engine = await start_gateway([HANGS, HANGS], users=[ALICE])
    watcher = Watcher(gateway)
    async with streaming(gateway, {**BODY, "n": 2}) as (reply_id, _):
        pass
    for choice in (1, 0):
        asked = {"turn": reply_id, "choice": choice, "reward": choice}
        status, answer = await reward(gateway, asked)
        assert status == 200, answer
    live = await watcher.next_ended()
    assert [turn.output_tokens for turn in live.session.turns] == [sampled(engine)] * 2
    turns = live.session.replies.turns_of[reply_id]
    assert {posted.turn: posted.reward for posted in live.session.rewards} == {
        turns[1]: 1,
        turns[0]: 0,
    }
