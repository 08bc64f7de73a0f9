"""The control plane: sessions, rewards, traces, the engine; and the document that describes it."""

import re
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.gateway.conftest import StartGateway
from tests.toolbox.gateway_requests import HI, control, get, post
from tests.toolbox.upstream import upstream_gateway


async def test_a_reply_of_several_choices_is_rewarded_by_turn(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway(["ok", "or so"])
    _, body = await control(gateway, "POST", "/control/sessions", {"id": "one"})
    (address,) = body["sessions"]
    asked = {"model": "policy", "messages": HI, "n": 2}
    async with (
        aiohttp.ClientSession(headers={"x-api-key": address["api_key"]}) as http,
        http.post(f"{address['base_url']}/chat/completions", json=asked) as reply,
    ):
        reply_id = (await reply.json())["id"]
    path = "/control/sessions/one/reward"
    status, refused = await control(gateway, "POST", path, {"reward": 1, "turn": reply_id})
    assert status == 400
    assert "2 choices" in refused["error"]["message"]
    assert (await control(gateway, "POST", path, {"reward": 1, "turn": 1}))[0] == 200


async def test_a_session_is_opened_rewarded_read_and_closed(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway("ok")
    opening = {"id": "task 1/a", "limits": {"max_turns": 2}, "split": "train"}
    status, body = await control(gateway, "POST", "/control/sessions", opening)
    assert status == 201
    (address,) = body["sessions"]
    async with (
        aiohttp.ClientSession(headers={"x-api-key": address["api_key"]}) as http,
        http.post(
            f"{address['base_url']}/chat/completions", json={"model": "policy", "messages": HI}
        ) as reply,
    ):
        reply_id = (await reply.json())["id"]
    path = "/control/sessions/task%201/a"
    assert (await control(gateway, "POST", f"{path}/reward", {"reward": 0.5}))[0] == 200
    status, posted = await control(
        gateway, "POST", f"{path}/reward", {"reward": 1, "turn": reply_id}
    )
    assert (status, posted) == (200, {"id": "task 1/a", "reward": 1.0, "turn": 0})
    status, trace = await control(gateway, "DELETE", path)
    assert status == 200
    assert trace["rewards"] == [{"reward": 0.5, "turn": None}, {"reward": 1.0, "turn": 0}]
    (turn,) = trace["turns"]
    assert turn["prompt_tokens"] == list(engine.requests[0].tokens)
    assert turn["message"]["content"] == "ok"
    assert (await control(gateway, "GET", path))[0] == 404


async def test_a_group_is_opened_at_once(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    _, body = await control(gateway, "POST", "/control/sessions", {"id": "g", "group_size": 3})
    assert [s["id"] for s in body["sessions"]] == ["g/0", "g/1", "g/2"]
    assert len({s["api_key"] for s in body["sessions"]}) == 3
    _, listed = await control(gateway, "GET", "/control/sessions")
    assert [s["id"] for s in listed["sessions"]] == ["g/0", "g/1", "g/2"]
    status, body = await control(gateway, "POST", "/control/sessions", {"id": "g/1"})
    assert (status, body["error"]["code"]) == (409, "session_exists")


async def test_a_session_rewards_itself_with_its_own_key(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    session, other = gateway.sessions.open("e"), gateway.sessions.open("other")
    assert (await control(gateway, "POST", "/v1/reward", {"reward": 1.0}, key=session.key))[
        0
    ] == 200
    assert [r.reward for r in session.rewards] == [1.0]
    assert other.rewards == []
    posted = {"reward": 1.0, "turn": 3}
    status, body = await control(gateway, "POST", "/v1/reward", posted, key=session.key)
    assert (status, body["error"]["param"]) == (400, "turn")


async def test_the_engine_is_held_and_released(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    assert await control(gateway, "GET", "/control/weights") == (200, {"version": 0})
    assert await control(gateway, "POST", "/control/pause") == (200, {"paused": True})
    assert engine.is_paused
    assert await control(gateway, "POST", "/control/resume") == (200, {"paused": False})
    assert not engine.is_paused


async def test_only_the_admin_controls(start_gateway: StartGateway) -> None:
    gateway, engine = await start_gateway()
    session = gateway.sessions.open("e")
    for key in ("", "wrong", session.key):
        for method, path in (
            ("GET", "/control/sessions"),
            ("GET", "/control/sessions/e"),
            ("DELETE", "/control/sessions/e"),
            ("POST", "/control/pause"),
        ):
            assert (await control(gateway, method, path, key=key))[0] == 401
    assert not engine.is_paused
    assert len(gateway.sessions) == 1


BAD: dict[str, tuple[Any, str | None]] = {
    "no object": ([], None),
    "unknown field": ({"colour": 1}, "colour"),
    "an empty group": ({"group_size": 0}, "group_size"),
    "unknown limit": ({"limits": {"max_turn": 1}}, "max_turn"),
    "unknown mode": ({"sampling": {"mode": "guess"}}, "mode"),
    "unknown split": ({"split": "test"}, "split"),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD)
async def test_a_bad_request_names_the_field(
    start_gateway: StartGateway, body: Any, param: str | None
) -> None:
    gateway, _ = await start_gateway()
    status, answer = await control(gateway, "POST", "/control/sessions", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert len(gateway.sessions) == 0


@pytest.mark.parametrize("reward", ['"high"', "null", "1e999", "NaN", "true"])
async def test_a_reward_is_a_finite_number(start_gateway: StartGateway, reward: str) -> None:
    gateway, _ = await start_gateway()
    session = gateway.sessions.open("e")
    status, _ = await post(session, gateway, f'{{"reward": {reward}}}'.encode(), path="reward")
    assert status == 400
    assert session.rewards == []


async def test_the_document_describes_every_route(start_gateway: StartGateway) -> None:
    gateway, _ = await start_gateway()
    _, document = await get(gateway.base_url.replace("/v1", "/openapi.json"))
    assert gateway._server.app is not None
    assert described_by(document) == served_by(gateway._server.app)
    assert "/control/weights" in document["paths"]


async def test_the_document_of_another_providers_door_describes_its_own_routes() -> None:
    gateway = upstream_gateway("http://127.0.0.1:1/v1")
    await gateway.start()
    try:
        _, document = await get(gateway.base_url.replace("/v1", "/openapi.json"))
        assert gateway._server.app is not None
        passed = {(method, "/v1/{path}") for method in ("GET", "POST", "DELETE")}
        assert described_by(document) == served_by(gateway._server.app) | passed
        assert "/control/weights" not in document["paths"], "there is no engine of ours"
        status, error = await get(gateway.base_url.replace("/v1", "/nowhere"))
        assert (status, error["error"]["code"]) == (404, "unknown_url")
    finally:
        await gateway.aclose()


def described_by(document: Any) -> set[tuple[str, str]]:
    """Methods and paths; every schema that the document refers to is there, and no other."""
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names == set(document["components"]["schemas"])
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }


def served_by(app: web.Application) -> set[tuple[str, str]]:
    served = set()
    for route in app.router.routes():
        info = route.resource.get_info() if route.resource else {}
        path = re.sub(r":[^}]*}", "}", str(info.get("path") or info.get("formatter")))
        if not path.startswith(("/s/", "/v1/v1/")) and route.method not in ("HEAD", "*"):
            served.add((route.method, path))
    return served
