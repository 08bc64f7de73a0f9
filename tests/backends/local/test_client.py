"""A rollout node's client of the engine: the same tokens as in the main process, and the same faults."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.engine import EngineClient, GenerateRequest
from areal_sdk.errors import EngineError, RemoteError
from areal_sdk.process.user_code import load_user_object
from areal_sdk.types import WeightUpdate
from tests.backends.local.cores import prompt


@dataclass
class Entered:
    """An engine, and a node's client of it that hears what the engine tells."""

    engine: LocalEngine
    entrance: Any
    client: EngineClient
    told: list[Mapping[str, Any]] = field(default_factory=list)

    def another(self, name: str) -> EngineClient:
        client: EngineClient = load_user_object(self.entrance.client)(self.engine.info, name=name)
        return client


REQUEST = GenerateRequest(prompt(30), 12, seed=3, ignore_eos=True)


@pytest.fixture
async def entered(checkpoint: Path, tmp_path: Path) -> AsyncIterator[Entered]:
    options = LocalOptions(max_slots=2, kv_memory_gb=0.1)
    engine = LocalEngine(checkpoint, log_dir=tmp_path, options=options)
    await engine.start()

    async def tell(state: Mapping[str, Any]) -> None:
        found.told.append(state)
        await found.client.told(state)

    entrance = await engine.open_entrance(tell, host="127.0.0.1")
    client: EngineClient = load_user_object(entrance.client)(engine.info, name="node-0")
    found = Entered(engine, entrance, client)
    try:
        await client.told(entrance.state)
        yield found
    finally:
        await client.aclose()
        await engine.aclose()


async def test_a_client_samples_like_its_engine_and_follows_its_versions_and_pauses(
    entered: Entered,
) -> None:
    engine, client = entered.engine, entered.client
    ours, theirs = await client.generate(REQUEST), await engine.generate(REQUEST)
    assert (ours.tokens, ours.versions) == (theirs.tokens, theirs.versions)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)  # its prefix was cached
    await engine.update_weights(WeightUpdate(7, None))
    chunks = [chunk async for chunk in client.stream(REQUEST)]
    assert {v for chunk in chunks for v in chunk.versions} == {7}
    assert client.version == 7
    await engine.pause()
    held = asyncio.create_task(client.generate(REQUEST))
    await asyncio.wait({held}, timeout=0.3)
    assert not held.done()
    await engine.resume()
    await held


async def test_a_client_connects_again_and_leaves_weights_and_pauses_to_the_main_process(
    entered: Entered,
) -> None:
    # The link is down, the engine is not.
    await entered.client._requester.child.kill()  # type: ignore[attr-defined]
    assert len((await entered.client.generate(REQUEST)).tokens) == 12
    assert not entered.told
    with pytest.raises(EngineError, match="the main process"):
        await entered.client.update_weights(WeightUpdate(8, None))
    with pytest.raises(RemoteError, match="is for the main process"):
        await entered.client._requester.child.call("pause", timeout_s=10)  # type: ignore[attr-defined]


async def test_requests_wait_for_the_next_engine_when_theirs_died(
    entered: Entered,
) -> None:
    engine, client = entered.engine, entered.client
    await engine.update_weights(WeightUpdate(7, None))
    endless = GenerateRequest(prompt(20), 900, seed=1, ignore_eos=True)
    async with aclosing(client.stream(endless)) as stream:  # type: ignore[type-var]
        await anext(stream)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="engine"):
            async for _ in stream:
                pass
    waiting = asyncio.create_task(client.generate(REQUEST))
    await engine.died()
    # A node that starts while the engine is down is told where it was.
    late = entered.another("node-1")
    await late.told(entered.entrance.state)
    asked_late = asyncio.create_task(late.generate(REQUEST))
    await engine.restart()
    assert len(entered.told) == 1
    assert (await waiting).versions == (7,) * 12
    await late.told(entered.told[0])
    assert (await asked_late).versions == (7,) * 12
    await late.aclose()
