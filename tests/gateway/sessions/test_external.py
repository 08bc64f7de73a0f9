"""Live sessions: opened by whoever calls, ended by them or by time, rewarded then or later."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from areal_sdk.config import Quota, parse_config
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import server
from areal_sdk.gateway.accounts.accounts import Account, Accounts, User
from areal_sdk.gateway.sessions.external import Ending, ExternalLimits
from areal_sdk.loop.services.gateway import live_limits
from areal_sdk.rollout.judging.verdicts import posted_outcome
from areal_sdk.testing import Fault, Reply, ScriptedEngine
from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import ALICE, HI, Watcher, call, control
from tests.toolbox.waiting import until

BOB = User("bob", "sk-bob-0123456789abcdef")
USERS = (ALICE, BOB)


async def test_a_session_opens_on_first_use_by_address_or_by_key(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    assert (await call(gateway, "/s/chat-1/v1/chat/completions", key=ALICE.api_key))[0] == 200
    assert (await call(gateway, key=f"{ALICE.api_key}/chat-1"))[0] == 200
    assert (await call(gateway, key=f"{ALICE.api_key}/chat-2"))[0] == 200
    assert watcher.begun == ["alice/chat-1", "alice/chat-2"]
    first = gateway.external.get("alice/chat-1")
    assert first is not None
    assert len(first.session.turns) == 2


async def test_the_openai_client_takes_either_form(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    root = gateway.base_url.removesuffix("/v1")
    for base_url, key in (
        (f"{root}/s/one/v1", ALICE.api_key),
        (gateway.base_url, f"{ALICE.api_key}/one"),
    ):
        async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
            await client.chat.completions.create(model="policy", messages=HI)
    live = gateway.external.get("alice/one")
    assert live is not None
    assert len(live.session.turns) == 2


async def test_a_bare_key_gets_a_session_a_request_rewarded_by_its_reply(
    start_gateway: StartGateway,
) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    _, reply, _ = await call(gateway, key=ALICE.api_key)
    assert not watcher.ended, "it waits for its reward"
    posted = {"reward": 0.5, "turn": reply["id"]}
    assert (await call(gateway, "/v1/reward", posted, key=BOB.api_key))[0] == 404
    assert (await call(gateway, "/v1/reward", posted, key=ALICE.api_key))[0] == 200
    live = await watcher.next_ended()
    assert live.ended is Ending.REQUEST
    assert [(r.reward, r.turn) for r in live.session.rewards] == [(0.5, 0)]
    assert (await call(gateway, "/v1/reward", posted, key=BOB.api_key))[0] == 404


async def test_the_reward_of_an_episode_is_final(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    named = f"{ALICE.api_key}/e"
    _, reply, _ = await call(gateway, key=named)
    for reward in (0.2, 0.9):
        assert (await call(gateway, "/v1/reward", {"reward": reward, "turn": 0}, key=named))[
            0
        ] == 200
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=named))[0] == 200
    live = await watcher.next_ended()
    posted = posted_outcome(live.session.rewards, num_turns=1)
    assert posted is not None
    assert posted.reward == 1.9, "the latest of the turn, and the episode's"
    again = {"reward": 0.5}
    for key, turn in ((named, {}), (named, {"turn": 0}), (ALICE.api_key, {"turn": reply["id"]})):
        status, body, headers = await call(gateway, "/v1/reward", {**again, **turn}, key=key)
        assert (status, body["error"]["code"]) == (409, "episode_judged")
        assert "has its reward, which is final" in body["error"]["message"]
        assert headers["x-should-retry"] == "false"
    status, body = await control(gateway, "POST", "/control/sessions/alice/e/reward", again)
    assert (status, body["error"]["code"]) == (409, "episode_judged")


async def test_a_reward_for_the_episode_ends_it(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    key = f"{ALICE.api_key}/e"
    await call(gateway, key=key)
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=key))[0] == 200
    assert (await watcher.next_ended()).ended is Ending.REWARD
    status, body, headers = await call(gateway, key=key)
    assert (status, body["error"]["code"]) == (409, "session_closed")
    assert headers["x-should-retry"] == "false"


async def test_a_reward_may_come_after_the_end(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    _, opened = await control(gateway, "POST", "/control/sessions", {"id": "e", "user": "bob"})
    (address,) = opened["sessions"]
    key = address["api_key"]
    await call(gateway, key=key)
    status, summary, _ = await call(gateway, "/v1/end", {}, key=key)
    assert (status, summary["closed"], summary["user"]) == (200, True, "bob")
    assert (await call(gateway, key=key))[0] == 409, "it takes no more turns"
    assert not watcher.ended
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=key))[0] == 200
    assert (await watcher.next_ended()).ended is Ending.CLIENT
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=key))[0] == 409, "too late"


async def test_a_reward_that_finds_no_session_is_told_why(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS, external=ExternalLimits(reward_wait_s=0.01))
    mine, named = ALICE.api_key, f"{ALICE.api_key}/e"

    async def why(key: str, **turn: str) -> str:
        status, body, _ = await call(gateway, "/v1/reward", {"reward": 1, **turn}, key=key)
        assert (status, body["error"]["code"]) == (404, "session_not_found")
        return str(body["error"]["message"])

    _, forgotten, _ = await call(gateway, key=mine)
    assert "--record` or `--learn" in await why(mine, turn=forgotten["id"])
    watcher = Watcher(gateway)
    assert "KEY/NAME" in await why(mine)
    assert "not known here" in await why(f"{mine}/never")
    _, late, _ = await call(gateway, key=mine)
    await watcher.next_ended()
    assert "too late" in await why(mine, turn=late["id"])
    _, reply, _ = await call(gateway, key=named)
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=named))[0] == 200
    others = await why(BOB.api_key, turn=reply["id"])
    assert others == (await why(BOB.api_key, turn="chatcmpl-0")).replace("chatcmpl-0", reply["id"])


async def test_a_reward_after_the_end_of_learning_is_told_so(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    mine, named = ALICE.api_key, f"{ALICE.api_key}/e"
    watcher = Watcher(gateway)
    _, judged, _ = await call(gateway, key=mine)
    posted = {"reward": 1, "turn": judged["id"]}
    assert (await call(gateway, "/v1/reward", posted, key=mine))[0] == 200
    assert await watcher.next_ended()
    gateway.external.end_learning()  # as a run does before it writes its last weights
    status, reply, _ = await call(gateway, key=mine)
    assert status == 200, "the policy still answers"
    assert (await call(gateway, key=named))[0] == 200
    for key, turn in ((mine, {"turn": reply["id"]}), (named, {}), (named, {"turn": 0})):
        status, body, headers = await call(gateway, "/v1/reward", {"reward": 1, **turn}, key=key)
        assert (status, body["error"]["code"]) == (503, "learning_ended")
        assert headers["x-should-retry"] == "false"
    assert (await call(gateway, "/v1/reward", posted, key=mine))[0] == 409, "it was trained"


async def test_a_reward_that_nothing_keeps_is_refused_with_the_cure(
    start_gateway: StartGateway,
) -> None:
    limits = live_limits(parse_config({"model": "m"}))
    gateway, _ = await start_gateway("ok", users=USERS, external=limits)
    named = f"{ALICE.api_key}/e"
    _, reply, _ = await call(gateway, key=named)
    for key, turn in ((named, {}), (named, {"turn": 0}), (ALICE.api_key, {"turn": reply["id"]})):
        status, body, _ = await call(gateway, "/v1/reward", {"reward": 1, **turn}, key=key)
        assert (status, body["error"]["code"]) == (409, "rewards_not_kept")
        assert "serve --record" in body["error"]["message"]
    _, opened = await control(gateway, "POST", "/control/sessions", {"id": "c"})
    key = opened["sessions"][0]["api_key"]
    assert (await call(gateway, "/v1/reward", {"reward": 1}, key=key))[0] == 200
    _, trace = await control(gateway, "DELETE", "/control/sessions/c")
    assert trace["rewards"] == [{"reward": 1.0, "turn": None}], "who opened it reads them"


@pytest.mark.parametrize("way", ["learn", "record"])
def test_a_server_that_keeps_sessions_keeps_their_rewards(way: str) -> None:
    assert live_limits(parse_config({"model": "m", "serve": {way: True}})).keeps_rewards


async def test_nobody_waits_for_a_reward_for_ever(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS, external=ExternalLimits(reward_wait_s=0.01))
    watcher = Watcher(gateway)
    await call(gateway, key=ALICE.api_key)
    live = await watcher.next_ended()
    assert not live.is_judged


async def test_a_silent_session_ends(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(
        "ok", users=USERS, external=ExternalLimits(idle_s=0.05, reward_wait_s=0.01)
    )
    watcher = Watcher(gateway)
    await call(gateway, key=f"{ALICE.api_key}/e")
    assert (await watcher.next_ended()).ended is Ending.IDLE
    assert len(gateway.sessions) == 0


async def test_a_session_that_waits_for_the_engine_is_not_silent(
    start_gateway: StartGateway,
) -> None:
    script = Reply("slow", fault=Fault.HANG, after=1)
    gateway, _ = await start_gateway(
        script, users=USERS, external=ExternalLimits(idle_s=0.02), max_request_s=0.5
    )
    watcher = Watcher(gateway)
    status, _, _ = await call(gateway, key=f"{ALICE.api_key}/e")
    assert status == 504
    assert (await watcher.next_ended()).session.faults


async def test_rewarded_turns_finish_an_ended_session(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    key = f"{ALICE.api_key}/e"
    for turn in range(2):
        await call(gateway, key=key)
        await call(gateway, "/v1/reward", {"reward": 0.5, "turn": turn}, key=key)
    assert not watcher.ended, "it may go on"
    await call(gateway, "/v1/end", {}, key=key)
    assert (await watcher.next_ended()).is_judged


async def test_one_user_cannot_reach_the_session_of_another(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    await call(gateway, key=f"{ALICE.api_key}/private")
    mine = gateway.external.get("alice/private")
    assert mine is not None
    for path in ("chat/completions", "reward", "end"):
        await call(gateway, f"/s/private/v1/{path}", {"reward": 1.0}, key=BOB.api_key)
        await call(gateway, f"/v1/{path}", {"reward": 1.0}, key=f"{BOB.api_key}/private")
        status, _, _ = await call(gateway, f"/s/private/v1/{path}", {"reward": 1.0})
        assert status == 401
        # A name has no separator in it, so that none reaches into another's names.
        status, _, _ = await call(
            gateway, f"/s/..%2Falice%2Fprivate/v1/{path}", {"reward": 1.0}, key=BOB.api_key
        )
        assert status in (400, 404)
    assert (await control(gateway, "GET", "/control/sessions/alice/private", key=BOB.api_key))[
        0
    ] == 401
    assert len(mine.session.turns) == 1
    assert mine.session.rewards == []
    assert mine.ended is None


async def test_a_stored_response_is_its_sessions_own(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    _, stored, _ = await call(
        gateway, "/v1/responses", {"model": "policy", "input": "Hi"}, key=f"{ALICE.api_key}/private"
    )
    path = f"/v1/responses/{stored['id']}"
    assert (await call(gateway, path, key=f"{ALICE.api_key}/private", method="GET"))[0] == 200
    for key in (f"{ALICE.api_key}/other", f"{BOB.api_key}/private", BOB.api_key):
        assert (await call(gateway, path, key=key, method="GET"))[0] == 404


QUOTAS: dict[str, tuple[Quota, str]] = {
    "requests": (Quota(requests_per_minute=2), "2 requests a minute"),
    "tokens": (Quota(tokens_per_minute=3), "3 sampled tokens a minute"),
}


@pytest.mark.parametrize(("quota", "what"), QUOTAS.values(), ids=QUOTAS)
async def test_over_quota_is_a_429_that_says_when(
    start_gateway: StartGateway, quota: Quota, what: str
) -> None:
    users = (User("alice", ALICE.api_key, quota), BOB)
    gateway, engine = await start_gateway("some words", users=users)
    watcher = Watcher(gateway)
    while (answer := await call(gateway, key=ALICE.api_key))[0] == 200:
        assert engine.num_requests < 9
    status, body, headers = answer
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    assert what in body["error"]["message"]
    assert 1 <= int(headers["Retry-After"]) <= 300
    assert len(watcher.begun) == engine.num_requests, "what is refused is no episode"
    assert (await call(gateway, key=BOB.api_key))[0] == 200, "others have their own"


async def test_too_many_requests_at_once_are_refused(start_gateway: StartGateway) -> None:
    hang = Reply("never ends", fault=Fault.HANG, after=1)
    users = (User("alice", ALICE.api_key, Quota(max_running=2)),)
    gateway, _ = await start_gateway(hang, users=users)
    metrics = gateway._metrics
    running = [asyncio.create_task(call(gateway, key=ALICE.api_key)) for _ in range(2)]
    await until(lambda: metrics.num_running == 2)
    assert (await call(gateway, key=ALICE.api_key))[0] == 429
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await until(lambda: metrics.num_running == 0)


async def test_too_many_open_sessions_are_refused_until_one_ends(
    start_gateway: StartGateway,
) -> None:
    users = (User("alice", ALICE.api_key, Quota(max_sessions=2)),)
    gateway, _ = await start_gateway("ok", users=users)
    Watcher(gateway)
    for name in ("a", "b"):
        assert (await call(gateway, key=f"{ALICE.api_key}/{name}"))[0] == 200
    assert (await call(gateway, key=f"{ALICE.api_key}/c"))[0] == 429
    status, _ = await control(
        gateway, "POST", "/control/sessions", {"id": "g", "group_size": 2, "user": "alice"}
    )
    assert status == 429
    await call(gateway, "/v1/end", {}, key=f"{ALICE.api_key}/a")
    assert (await call(gateway, key=f"{ALICE.api_key}/c"))[0] == 200


async def test_of_too_many_that_wait_for_a_reward_the_oldest_gives_up(
    start_gateway: StartGateway,
) -> None:
    users = (User("alice", ALICE.api_key, Quota(max_sessions=2)),)
    gateway, _ = await start_gateway("ok", users=users)
    watcher = Watcher(gateway)
    for _ in range(5):
        assert (await call(gateway, key=ALICE.api_key))[0] == 200
    assert [live.id for live in watcher.ended] == watcher.begun[:3]


async def test_the_sdk_waits_as_long_as_a_429_says(start_gateway: StartGateway) -> None:
    users = (User("alice", ALICE.api_key, Quota(requests_per_minute=60)),)
    gateway, _ = await start_gateway("ok", users=users)
    account = gateway._access._accounts.by_name("alice")
    assert account is not None
    account._usage.requests.spend(60)
    async with AsyncOpenAI(base_url=gateway.base_url, api_key=ALICE.api_key) as client:
        await client.chat.completions.create(model="policy", messages=HI)
        account._usage.requests.spend(60)
        with pytest.raises(openai.RateLimitError):
            await client.with_options(max_retries=0).chat.completions.create(
                model="policy", messages=HI
            )


async def test_what_nobody_observes_is_forgotten_when_it_ends(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    for _ in range(3):
        await call(gateway, key=ALICE.api_key)
    assert list(gateway.external) == []
    assert len(gateway.sessions) == 0


async def test_closing_the_gateway_ends_every_session(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway("ok", users=USERS)
    watcher = Watcher(gateway)
    await call(gateway, key=ALICE.api_key)
    await call(gateway, key=f"{ALICE.api_key}/e")
    await gateway.aclose()
    assert [live.ended for live in watcher.ended] == [Ending.REQUEST, Ending.SHUTDOWN]


async def test_a_running_answer_gets_a_grace_and_then_the_error_of_a_server_that_stops(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang, is_closing = Reply("never ends", fault=Fault.HANG, after=1), asyncio.Event()
    num_asked = itertools.count(1)

    async def script(_: GenerateRequest) -> Reply | str:
        if next(num_asked) == 1:
            return hang
        await is_closing.wait()
        return "whole"

    gateway, _ = await start_gateway(script, users=USERS)
    async with AsyncOpenAI(
        base_url=gateway.base_url, api_key=ALICE.api_key, max_retries=0
    ) as client:
        ask = client.chat.completions.create
        stream = await ask(model="policy", messages=HI, stream=True)
        await anext(aiter(stream))
        whole = asyncio.create_task(ask(model="policy", messages=HI))
        await until(lambda: gateway._metrics.num_running == 2)
        monkeypatch.setattr(server, "STOP_GRACE_S", 1.0)
        closing = asyncio.create_task(gateway.aclose())
        is_closing.set()
        assert (await whole).choices[0].message.content == "whole"
        with pytest.raises(openai.APIError, match="server is stopping") as error:
            async for _ in stream:
                pass
        assert (error.value.type, error.value.code) == ("server_error", "server_stopping")
        await closing


BAD_USERS: dict[str, tuple[list[User], str]] = {
    "a short key": ([User("a", "sk-short")], "at least 16"),
    "a key twice": ([User("a", ALICE.api_key), User("b", ALICE.api_key)], "the same api_key"),
    "a name twice": ([ALICE, User("alice", BOB.api_key)], "taken"),
    "the admin's name": ([User("admin", BOB.api_key)], "taken"),
    "a name with a slash": ([User("a/b", BOB.api_key)], "letters"),
}


@pytest.mark.parametrize(("users", "message"), BAD_USERS.values(), ids=BAD_USERS)
def test_bad_users_are_refused_at_start(users: list[User], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Accounts(users, admin_key="sk-admin-0123456789abcdef")


@pytest.mark.parametrize("key", ["sk-short", "sk-schlüssel-0123456789"])
def test_the_admin_key_is_held_to_what_keys_of_users_are(key: str) -> None:
    with pytest.raises(ConfigError, match="the admin key has at least 16 ASCII") as error:
        Accounts(admin_key=key)
    assert key not in str(error.value)


def test_an_allowance_refills_as_time_passes() -> None:
    times: Iterator[float] = iter([0.0, 0.0, 0.0, 0.0, 0.5, 1.0])
    account = Account("a", Quota(requests_per_minute=60), clock=lambda: next(times, 1.0))
    allowance = account._usage.requests
    allowance.spend(60)
    assert [allowance.wait_s() for _ in range(3)] == [1.0, 0.5, 0.0]


async def test_pages_of_other_origins_may_call_only_when_asked(
    start_gateway: StartGateway,
) -> None:
    origin = {"Origin": "https://app.example"}
    gateway, _ = await start_gateway("ok")
    async with (
        aiohttp.ClientSession(headers=origin) as http,
        http.options(f"{gateway.base_url}/models") as reply,
    ):
        assert reply.status == 405
        assert "Access-Control-Allow-Origin" not in reply.headers
    gateway, _ = await start_gateway("ok", cors_origins=["https://app.example"])
    for name, allowed in (("https://app.example", True), ("https://evil.example", False)):
        async with (
            aiohttp.ClientSession(headers={"Origin": name}) as http,
            http.options(f"{gateway.base_url}/chat/completions") as reply,
        ):
            assert reply.status == 204
            assert (reply.headers.get("Access-Control-Allow-Origin") == name) is allowed


async def test_keys_never_show_in_what_is_told(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ScriptedEngine):
        def stream(self, request: Any) -> Any:
            raise RuntimeError("a bug")

    gateway, _ = await start_gateway("ok", users=USERS, engine_class=Failing)
    status, body, _ = await call(gateway, key=ALICE.api_key)
    assert status == 500
    _, sessions = await control(gateway, "GET", "/control/sessions")
    _, metrics, _ = 0, repr(USERS), 0
    for text in (json.dumps(body), json.dumps(sessions), metrics, caplog.text):
        assert ALICE.api_key not in text
        assert gateway.admin_key not in text
