"""Answers are well formed and never a 500, whatever a client sends."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.conftest import StartGateway
from tests.gateway.wire.bodies import (
    BODIES,
)
from tests.toolbox.gateway_requests import CALL

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["function", "text", "auto", "assistant", "tool", "\ud83d", "<|im_end|>"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, (dict, list)):
            yield from _places(inner, (*path, key))
        else:
            yield (*path, key)


def _spoil(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


@pytest.mark.parametrize("path", list(BODIES))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_body_breaks_the_gateway(
    start_gateway: StartGateway, path: str, data: st.DataObject
) -> None:
    gateway, engine = await start_gateway(CALL, shape="qwen3")
    session = gateway.sessions.open("e")
    url = f"{session.base_url(gateway.base_url)}/{path.partition(' with ')[0]}"
    async with aiohttp.ClientSession() as http:
        for _ in range(4):
            body = json.loads(json.dumps(BODIES[path]))
            where = data.draw(st.sampled_from(list(_places(body))))
            _spoil(body, where, data.draw(JSON))
            body["stream"] = data.draw(st.booleans())
            async with http.post(url, data=json.dumps(body).encode()) as reply:
                raw = await reply.read()
            assert reply.status in (200, 400), (body, raw)
            if reply.content_type == "application/json":
                json.loads(raw)
    await gateway.aclose()
    assert engine.num_active == 0
