"""Faults between us and a real server: the request goes on, or ends in an `EngineError`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.backends.remote.client import Deadlines
from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.types import WeightUpdate
from tests.backends.sglang.conftest import MakeEngine, client_of
from tests.backends.sglang.faulty_proxy import FaultyProxy
from tests.backends.sglang.rescoring import worst_error
from tests.toolbox.waiting import until

PROMPT = tuple(b"faults")
PATIENT = ServerLimits(supervision=SupervisionOptions(check_every_s=0.5))
"""Limits for faults that are seen at once; faults that are seen by a deadline have short ones."""
FAST_LIMITS = ServerLimits(
    deadlines=Deadlines(token_s=5.0, control_s=5.0, probe_s=2.0, busy_probe_s=3.0, weights_s=30.0),
    supervision=SupervisionOptions(check_every_s=0.5),
)
FAST = {"limits": FAST_LIMITS, "request_wait_s": 20.0}


def weights(checkpoint: Path, version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoint / "model.safetensors"))


async def test_a_stream_cut_in_the_middle_continues_from_its_recorded_tokens(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, limits=PATIENT)
        proxy.cut_streams_after = 7
        result = await engine.generate(GenerateRequest(PROMPT, 40, ignore_eos=True))
        assert len(result.tokens) == 40
        assert engine.num_failovers == 1
        assert worst_error(PROMPT, result, checkpoints) < 1e-3


async def test_a_server_that_answers_500_is_tried_again_after_a_probe(
    server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, limits=PATIENT)
        proxy.fail["/generate"] = 2
        result = await engine.generate(GenerateRequest(PROMPT, 5, ignore_eos=True))
        assert len(result.tokens) == 5
        assert engine.num_failovers >= 1


@pytest.mark.slow
async def test_faults_without_end_end_the_request_in_an_engine_error(
    server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(
            proxy.address, limits=replace(FAST_LIMITS, max_failovers=2), request_wait_s=3.0
        )
        proxy.fail["/generate"] = 10**6
        with pytest.raises(EngineError, match=r"ready for 3 s|gave up after 3 faults"):
            await engine.generate(GenerateRequest(PROMPT, 5, ignore_eos=True))


@pytest.mark.slow
async def test_a_server_that_accepts_and_never_answers_is_left(
    server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, server.address, **FAST)
        proxy.silence.set()
        async with asyncio.timeout(60):
            results = await asyncio.gather(
                *(engine.generate(GenerateRequest(PROMPT, 5, ignore_eos=True)) for _ in range(4))
            )
        assert [len(result.tokens) for result in results] == [5] * 4
        silent = engine.servers[0]
        assert silent.state == "down"
        proxy.silence.clear()
        await until(lambda: silent.state == "ready")


@pytest.mark.slow
async def test_a_refused_update_is_made_good_over_files_or_reported(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, **FAST)
        proxy.refuse["/update_weights_from_disk"] = 1
        await engine.update_weights(weights(checkpoints[1], 1))
        result = await engine.generate(GenerateRequest(PROMPT, 10, ignore_eos=True))
        assert set(result.versions) == {1}
        assert worst_error(PROMPT, result, checkpoints) < 1e-3

        proxy.refuse["/update_weights_from_disk"] = 10**6
        with pytest.raises(EngineError, match=r"no server serves version 2.*injected"):
            await engine.update_weights(weights(checkpoints[2], 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("skipped", "the push was skipped"),
        ("skipped but labelled", "parameters are not the published ones"),
        ("other weights", "parameters are not the published ones"),
        ("unflushed", "prefix cache was not flushed"),
    ],
)
async def test_a_bad_push_is_caught_and_named(
    damage: str,
    named: str,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first push is damaged; the engine says how, repairs it, and serves the right weights."""
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, **FAST)
        update = "/update_weights_from_disk"
        if damage == "skipped":
            proxy.swallow[update] = 1
        else:
            damages = iter([True])

            def rewrite(body: dict[str, object]) -> dict[str, object]:
                if not next(damages, False):
                    return body
                if damage == "skipped but labelled":
                    return body | {"model_path": str(checkpoints[0])}
                if damage == "other weights":
                    return body | {"model_path": str(checkpoints[2])}
                return body | {"flush_cache": False}

            proxy.rewrite[update] = rewrite
            member = engine.servers[0]
            canary = engine.canary
            await client_of(member).next_token_logprobs(canary.tokens, canary.candidates)
        await engine.update_weights(weights(checkpoints[1], 1))
        assert named in caplog.text
        result = await engine.generate(GenerateRequest(PROMPT, 10, ignore_eos=True))
        assert set(result.versions) == {1}
        assert worst_error(PROMPT, result, checkpoints) < 1e-3


@pytest.mark.slow
async def test_nothing_is_sent_to_a_server_of_other_weights(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    """Somebody loads other weights behind our back, as a restart would."""
    engine = await make_engine(server.address, **FAST)
    await engine.update_weights(weights(checkpoints[1], 1))
    await engine.servers[0].client.update_from_disk(str(checkpoints[0]), label="base", flush=True)
    result = await engine.generate(GenerateRequest(PROMPT, 10, ignore_eos=True))
    assert set(result.versions) == {1}
    assert worst_error(PROMPT, result, checkpoints) < 1e-3
