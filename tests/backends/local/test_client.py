"""A rollout node's client of the engine: the same tokens as in the main process, and the same faults."""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.engine import EngineClient, GenerateRequest
from areal_sdk.errors import EngineError, RemoteError
from areal_sdk.process.user_code import load_user_object
from areal_sdk.types import WeightUpdate
from tests.backends.local.cores import prompt


async def test_a_client_samples_like_its_engine_through_updates_pauses_and_death(
    checkpoint: Path, tmp_path: Path
) -> None:
    options = LocalOptions(max_slots=2, kv_memory_gb=0.1)
    engine = LocalEngine(checkpoint, log_dir=tmp_path, options=options)
    await engine.start()
    told: list[Mapping[str, Any]] = []

    async def tell(state: Mapping[str, Any]) -> None:
        told.append(state)
        await client.told(state)

    entrance = await engine.open_entrance(tell, host="127.0.0.1")
    client: EngineClient = load_user_object(entrance.client)(engine.info, name="node-0")
    try:
        await client.told(entrance.state)
        request = GenerateRequest(prompt(30), 12, seed=3, ignore_eos=True)
        ours, theirs = await client.generate(request), await engine.generate(request)
        assert (ours.tokens, ours.versions) == (theirs.tokens, theirs.versions)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)  # its prefix was cached
        await engine.update_weights(WeightUpdate(7, None))
        chunks = [chunk async for chunk in client.stream(request)]
        assert {v for chunk in chunks for v in chunk.versions} == {7}
        assert client.version == 7
        await engine.pause()
        held = asyncio.create_task(client.generate(request))
        await asyncio.wait({held}, timeout=0.3)
        assert not held.done()
        await engine.resume()
        await held
        # The link was down, the engine was not.
        await client._requester.child.kill()  # type: ignore[attr-defined]
        assert (await client.generate(request)).versions == (7,) * 12
        assert not told
        with pytest.raises(EngineError, match="the main process"):
            await client.update_weights(WeightUpdate(8, None))
        with pytest.raises(RemoteError, match="is for the main process"):
            await client._requester.child.call("pause", timeout_s=10)  # type: ignore[attr-defined]
        endless = GenerateRequest(prompt(20), 900, seed=1, ignore_eos=True)
        async with aclosing(client.stream(endless)) as stream:  # type: ignore[type-var]
            await anext(stream)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="engine"):
                async for _ in stream:
                    pass
        waiting = asyncio.create_task(client.generate(request))
        await engine.died()
        # A node that starts while the engine is down is told where it was.
        late: EngineClient = load_user_object(entrance.client)(engine.info, name="node-1")
        await late.told(entrance.state)
        asked_late = asyncio.create_task(late.generate(request))
        await engine.restart()
        assert len(told) == 1
        assert (await waiting).versions == (7,) * 12
        await late.told(told[0])
        assert (await asked_late).versions == (7,) * 12
        await late.aclose()
    finally:
        await client.aclose()
        await engine.aclose()
