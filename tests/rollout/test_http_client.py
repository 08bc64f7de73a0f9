"""The connection pool of agents is one of `openai`, which need not be imported for it."""

import sys
from typing import Any

import openai
import pytest

from areal_sdk.rollout.agents.http_client import shared_http_client


def settings(client: Any) -> dict[str, Any]:
    pool = client._transport._pool
    return {
        "timeout": client.timeout,
        "follow_redirects": client.follow_redirects,
        "trust_env": client.trust_env,
        "connections": (pool._max_connections, pool._max_keepalive_connections),
    }


@pytest.mark.parametrize("for_gateway", [True, False])
async def test_the_pool_is_the_same_whether_openai_is_imported_or_not(
    monkeypatch: pytest.MonkeyPatch, for_gateway: bool
) -> None:
    imported: Any = shared_http_client(for_gateway=for_gateway)
    monkeypatch.delitem(sys.modules, "openai")
    client = shared_http_client(for_gateway=for_gateway)
    assert "openai" not in sys.modules
    assert issubclass(type(imported), openai.DefaultAsyncHttpxClient)
    assert settings(client) == settings(imported)
    await openai.AsyncOpenAI(api_key="key", base_url="http://here/v1", http_client=client).close()
    assert not client.is_closed
    for one in (client, imported):
        await one.close_for_good()
        assert one.is_closed


async def test_an_openai_with_a_library_that_is_unknown_makes_the_pool_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    required = ["pydantic>=2", "httpx3<4", "httpx>=0.2; extra == 'old'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: required)
    monkeypatch.delitem(sys.modules, "openai")
    client = shared_http_client()
    assert client.timeout == openai.Timeout(None)
    await client.close_for_good()
