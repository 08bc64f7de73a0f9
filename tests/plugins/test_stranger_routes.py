"""A route and a backend that a plugin brings are served with the gateway's keys, quotas, errors and records."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.services.gateway import make_backend, routes_of
from areal_sdk.plugins import Plugins, load_plugins
from areal_sdk.routes import BackendSettings, Call, Route
from areal_sdk.testing import ScriptedEngine
from tests.gateway.model_dirs import make_model_dir
from tests.toolbox.gateway_requests import HI

BOB = User("bob", "sk-bob-0123456789abcdef", Quota(requests_per_minute=2))


@pytest.fixture
def plugins() -> Plugins:
    return load_plugins(files=[Path(__file__).parent / "strangers" / "rerank.py"])


def gateway_with(routes: list[Route], tmp_path: Path) -> Gateway:
    directory = make_model_dir(tmp_path / "model", "qwen2.5")
    engine = ScriptedEngine("ok", model_dir=directory)
    renderer = Renderer.load(directory)
    return Gateway(engine, renderer=renderer, model_name="policy", users=[BOB], routes=routes)


async def post(
    url: str, body: Any, key: str = "", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    async with (
        aiohttp.ClientSession(headers=sent) as http,
        http.post(url, json=body) as reply,
    ):
        return reply.status, await reply.json()


async def test_a_route_takes_the_gateways_keys_quotas_and_errors(
    plugins: Plugins, tmp_path: Path
) -> None:
    gateway = gateway_with(routes_of(plugins), tmp_path)
    await gateway.start()
    session = gateway.sessions.open("e")
    url, own = f"{gateway.base_url}/rerank", f"{session.base_url(gateway.base_url)}/rerank"
    body = {"documents": ["b", "a"]}
    answer = (200, {"documents": ["a", "b"], "by": "rerank"})
    try:
        assert await post(own, body) == answer, "an agent's address needs no key"
        assert (await post(url, body, "sk-nobody"))[0] == 401
        assert await post(url, body, BOB.api_key) == answer
        status, error = await post(url, {}, BOB.api_key)
        assert (status, error["error"]["param"]) == (400, "documents")
        assert (await post(url, body, BOB.api_key))[0] == 429, "the third within a minute"
        _, error = await post(url, {}, gateway.admin_key, {"anthropic-version": "2023-06-01"})
        assert error["type"] == "error", "in the form of the caller's wire format"
    finally:
        await gateway.aclose()


async def test_a_route_cannot_replace_one_of_the_gateway(tmp_path: Path) -> None:
    async def steal(call: Any) -> Any: ...

    gateway = gateway_with([Route("POST", "chat/completions", steal)], tmp_path)
    with pytest.raises(ConfigError, match="chat/completions is one of the gateway itself"):
        await gateway.start()


async def test_a_backend_answers_in_place_of_a_model_and_is_recorded(plugins: Plugins) -> None:
    backend = make_backend("parrot", plugins=plugins, api_key="", max_request_s=60.0)
    gateway = BackendGateway(backend, users=[BOB])
    await gateway.start()
    try:
        url, key = f"{gateway.base_url}/chat/completions", f"{BOB.api_key}/e"
        status, answer = await post(url, {"messages": HI}, key)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hi")
        reward = {"reward": 1.0, "turn": answer["id"]}
        assert (await post(f"{gateway.base_url}/reward", reward, key))[0] == 200
        live = gateway.external.get("bob/e")
        assert live is not None
        assert [turn.message["content"] for turn in live.session.turns] == ["Hi"]
    finally:
        await gateway.aclose()


async def test_a_route_that_asks_for_it_is_served_beside_a_backend_and_knows_its_caller(
    plugins: Plugins, tmp_path: Path
) -> None:
    async def tell(call: Call) -> web.Response:
        return web.json_response([call.user, call.is_admin, str(call.run_dir)])

    backend = make_backend("parrot", plugins=plugins, api_key="", max_request_s=60.0)
    routes = [Route("POST", "who", tell, beside_backends=True), Route("POST", "not", tell)]
    gateway = BackendGateway(backend, users=[BOB], routes=routes, run_dir=tmp_path)
    await gateway.start()
    try:
        who = f"{gateway.base_url}/who"
        assert await post(who, {}, BOB.api_key) == (200, ["bob", False, str(tmp_path)])
        assert await post(who, {}, gateway.admin_key) == (200, ["admin", True, str(tmp_path)])
        own = gateway.sessions.open("e")
        assert (await post(who, {}, own.key))[1] == ["", False, str(tmp_path)]
        status, answer = await post(f"{gateway.base_url}/not", {"messages": HI}, BOB.api_key)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hi"), "the backend's"
    finally:
        await gateway.aclose()


def test_the_key_of_a_provider_is_in_no_text_of_its_settings() -> None:
    assert "sk-secret" not in repr(BackendSettings("http://x/v1", "sk-secret"))
