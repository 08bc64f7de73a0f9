"""Real servers killed, stopped and starved: requests go on elsewhere, servers come back current."""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.engine import GenerateRequest, GenerateResult
from areal_sdk.errors import EngineError
from areal_sdk.types import FinishReason, WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection
from tests.backends.sglang.conftest import MakeEngine, start_server
from tests.backends.sglang.deadlines import LIMITS, WAITS
from tests.backends.sglang.faulty_proxy import FaultyProxy
from tests.backends.sglang.rescoring import worst_error
from tests.toolbox.waiting import until

pytestmark = pytest.mark.slow

PROMPT = tuple(b"processes")


@pytest.fixture(scope="session")
def small_server(start: Callable[..., list[ServerProcess]]) -> ServerProcess:
    """A server whose KV pool holds hardly more than one request."""
    return start(1, kv_tokens=600)[0]


def weights(checkpoint: Path, version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoint / "model.safetensors"))


def request(index: int, max_new_tokens: int = 500) -> GenerateRequest:
    return GenerateRequest(PROMPT, max_new_tokens, ignore_eos=True, session=f"session-{index}")


async def until_busy(engine: SGLangEngine, count: int) -> None:
    """Every server samples for somebody."""
    await until(
        lambda: (
            sum(m.num_running for m in engine.servers) == count
            and all(m.num_running and m.last_token_at for m in engine.servers)
        )
    )


async def test_a_killed_server_loses_no_request_and_comes_back_with_current_weights(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    launcher = SGLangLauncher(
        checkpoints[0], environment, tmp_path, settings=SGLangSection(servers=2)
    )
    engine = SGLangEngine(
        checkpoints[0], launcher=launcher, log_dir=tmp_path, settings=WAITS, limits=LIMITS
    )
    await engine.start()
    try:
        await engine.update_weights(weights(checkpoints[1], 1))
        generations = [asyncio.create_task(engine.generate(request(i))) for i in range(6)]
        await until_busy(engine, 6)
        victim = engine.servers[0]
        assert victim.process is not None
        killed = victim.process.pid
        victim.process.signal(signal.SIGKILL)
        results = await asyncio.gather(*generations)
        assert [len(result.tokens) for result in results] == [500] * 6
        assert engine.num_failovers >= 1
        check(results, checkpoints, versions={1})

        await until(lambda: victim.state == "ready", timeout_s=600)
        assert victim.process.pid != killed
        assert victim.version == 1
        await engine.drain(engine.servers[1].address, timeout_s=60)
        revived = await engine.generate(request(0, 20))
        check([revived], checkpoints, versions={1})
    finally:
        await engine.aclose()
    assert not any(m.process is not None and m.process.is_running for m in engine.servers)


async def test_a_server_that_hangs_for_good_is_started_again(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    launcher = SGLangLauncher(
        checkpoints[0], environment, tmp_path, settings=SGLangSection(servers=2)
    )
    supervision = replace(LIMITS.supervision, restart_hung_after_s=2.0)
    limits = replace(LIMITS, supervision=supervision)
    engine = SGLangEngine(
        checkpoints[0], launcher=launcher, log_dir=tmp_path, settings=WAITS, limits=limits
    )
    await engine.start()
    try:
        await engine.update_weights(weights(checkpoints[1], 1))
        generations = [asyncio.create_task(engine.generate(request(i))) for i in range(6)]
        await until_busy(engine, 6)
        victim = engine.servers[0]
        hung = victim.process
        assert hung is not None
        hung.signal(signal.SIGSTOP)  # nobody will wake it
        check(await asyncio.gather(*generations), checkpoints, versions={1})
        await until(lambda: victim.process is not hung and victim.state == "ready", timeout_s=600)
        assert not hung.is_running
        await engine.drain(engine.servers[1].address, timeout_s=60)
        check([await engine.generate(request(0, 20))], checkpoints, versions={1})
    finally:
        await engine.aclose()


async def test_a_server_that_fails_to_start_five_times_is_left_down_and_the_others_go_on(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    python, starts = tmp_path / "python", tmp_path / "starts"

    def becomes(last_line: str) -> None:
        python.write_text(f"#!/bin/sh\necho started >> {starts}\n{last_line}\n")
        python.chmod(0o755)

    becomes(f'exec {environment.python} "$@"')
    launcher = SGLangLauncher(
        checkpoints[0],
        replace(environment, python=python),
        tmp_path,
        settings=SGLangSection(servers=2),
    )
    limits = replace(LIMITS, supervision=SupervisionOptions(check_every_s=0.2))
    engine = SGLangEngine(
        checkpoints[0], launcher=launcher, log_dir=tmp_path, settings=WAITS, limits=limits
    )
    await engine.start()
    try:
        generations = [asyncio.create_task(engine.generate(request(i))) for i in range(6)]
        await until_busy(engine, 6)
        starts.unlink()
        becomes("exit 1")
        victim, other = engine.servers
        assert victim.process is not None
        victim.process.signal(signal.SIGKILL)
        await until(lambda: "left down after 5 starts that failed" in victim.reason)
        await engine.update_weights(weights(checkpoints[1], 1))
        results = await asyncio.gather(*generations)
        assert [len(result.tokens) for result in results] == [500] * 6
        check(results, checkpoints, versions={0, 1})
        victim.wake.set()
        await asyncio.sleep(5 * limits.supervision.check_every_s)
        assert starts.read_text().count("started") == 5
        assert (victim.state, other.state) == ("down", "ready")
    finally:
        await engine.aclose()


async def test_a_named_server_that_comes_back_with_old_weights_gets_the_current_ones_first(
    environment: SGLangEnvironment,
    checkpoints: list[Path],
    make_engine: MakeEngine,
    tmp_path: Path,
) -> None:
    """Somebody started it, so somebody starts it again, with the checkpoint it began with."""
    log_path = tmp_path / "server.log"
    process = start_server(checkpoints[0], environment, log_path=log_path)
    try:
        engine = await make_engine(
            process.address,
            is_reset=False,
            limits=replace(LIMITS, connect_timeout_s=600.0),
            request_wait_s=600.0,
        )
        await engine.update_weights(weights(checkpoints[1], 1))
        generations = [asyncio.create_task(engine.generate(request(i))) for i in range(3)]
        await until_busy(engine, 3)
        await process.stop(grace_s=0.0)
        port = int(process.address.rsplit(":", 1)[1])
        process = start_server(checkpoints[0], environment, log_path=log_path, port=port)
        results = await asyncio.gather(*generations)
        assert engine.num_failovers >= 3
        assert [len(result.tokens) for result in results] == [500] * 3
        check(results, checkpoints, versions={1})
    finally:
        await process.stop(grace_s=2.0)


async def test_a_stopped_server_is_left_and_taken_back_when_it_runs_again(
    second_server: ServerProcess,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    other = second_server
    engine = await make_engine(
        server.address,
        other.address,
        limits=LIMITS,
    )
    generations = [asyncio.create_task(engine.generate(request(i))) for i in range(6)]
    await until_busy(engine, 6)
    stopped = engine.servers[1]
    other.signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(120):
            results = await asyncio.gather(*generations)
        assert [len(result.tokens) for result in results] == [500] * 6
        await until(lambda: stopped.state == "down")
        async with asyncio.timeout(120):
            await engine.update_weights(weights(checkpoints[1], 1))
    finally:
        other.signal(signal.SIGCONT)
    check(results, checkpoints, versions={0})
    await until(lambda: stopped.state == "ready")
    assert stopped.version == 1
    await engine.drain(server.address, timeout_s=60)
    check([await engine.generate(request(1, 20))], checkpoints, versions={1})


@pytest.mark.parametrize(
    ("transport", "moment"),
    [
        ("disk", "/update_weights_from_disk"),
        ("tensor", "/update_weights_from_tensor"),
        ("distributed", "/update_weights_from_distributed"),
        ("distributed", "/begin_weight_update"),
    ],
)
async def test_a_server_stopped_in_a_push_holds_up_neither_trainer_nor_requests(
    transport: str,
    moment: str,
    second_server: ServerProcess,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    async with FaultyProxy(second_server.address).running() as proxy:
        engine = await make_engine(
            server.address,
            proxy.address,
            transport=transport,
            limits=replace(LIMITS, deadlines=replace(LIMITS.deadlines, weights_s=45.0)),
        )
        await engine.update_weights(weights(checkpoints[1], 1))
        generations = [asyncio.create_task(engine.generate(request(i))) for i in range(6)]
        await until_busy(engine, 6)

        def stop(body: dict[str, Any]) -> dict[str, Any]:
            second_server.signal(signal.SIGSTOP)
            return body

        proxy.rewrite[moment] = stop
        try:
            async with asyncio.timeout(300):
                await engine.update_weights(weights(checkpoints[2], 2))
                results = await asyncio.gather(*generations)
        finally:
            proxy.rewrite.clear()
            second_server.signal(signal.SIGCONT)
        check(results, checkpoints, versions={1, 2})
        stopped = engine.servers[1]
        await until(lambda: stopped.state == "ready", timeout_s=300)
        await engine.drain(server.address, timeout_s=60)
        check([await engine.generate(request(1, 20))], checkpoints, versions={2})


async def test_a_pool_out_of_kv_makes_requests_wait_and_a_hopeless_one_fail(
    small_server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    small = small_server
    engine = await make_engine(small.address)
    assert engine.info.max_context <= 600
    results = await asyncio.gather(*(engine.generate(request(i, 400)) for i in range(6)))
    assert {result.finish_reason for result in results} == {FinishReason.LENGTH}
    check(results, checkpoints, versions={0})
    with pytest.raises(EngineError, match="the model's context holds 594"):
        await engine.generate(GenerateRequest(PROMPT * 100, 10))


async def test_a_refused_distributed_update_hangs_nobody(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    async with FaultyProxy(server.address).running() as proxy:
        engine = await make_engine(proxy.address, transport="distributed")
        await engine.update_weights(weights(checkpoints[1], 1))
        refusals = (
            "/update_weights_from_distributed",
            "/begin_weight_update",
            "/end_weight_update",
        )
        for path in (*refusals, "/init_weights_update_group"):
            proxy.refuse[path] = 1
            async with asyncio.timeout(120):
                await engine.update_weights(weights(checkpoints[2], engine.version + 1))
            by_version = [checkpoints[2]] * 8
            result = await engine.generate(request(0, 20))
            assert set(result.versions) == {engine.version}
            assert worst_error(PROMPT, result, by_version) < 1e-3
        await engine.update_weights(weights(checkpoints[1], 6))  # a new group with a new sender
        assert set((await engine.generate(request(0, 20))).versions) == {6}


async def test_a_sender_that_dies_is_replaced(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address, transport="tensor")
    await engine.update_weights(weights(checkpoints[1], 1))
    assert engine.sender_pid is not None
    os.kill(engine.sender_pid, signal.SIGKILL)
    await engine.update_weights(weights(checkpoints[2], 2))
    result = await engine.generate(request(0, 20))
    assert set(result.versions) == {2}
    check([result], checkpoints, versions={2})


async def test_memory_is_lent_and_requests_go_on_under_the_next_weights(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(
        server.address,
        colocated=True,
        transport="tensor",
        limits=ServerLimits(supervision=LIMITS.supervision),
    )
    assert engine.info.shares_device
    generations = [asyncio.create_task(engine.generate(request(i))) for i in range(3)]
    await until_busy(engine, 3)
    await engine.release_memory()
    member = engine.servers[0]
    assert member.num_running == 0
    assert not any(generation.done() for generation in generations)
    last_token_at = member.last_token_at
    member.wake.set()  # a supervisor that asked it for a token now would end it
    await asyncio.sleep(2 * LIMITS.supervision.check_every_s)
    assert member.last_token_at == last_token_at

    await engine.resume_memory()
    await engine.update_weights(weights(checkpoints[1], 1))
    await engine.resume()
    results = await asyncio.gather(*generations)
    assert [len(result.tokens) for result in results] == [500] * 3
    for result in results:
        assert set(result.versions) == {0, 1}
        assert worst_error(PROMPT, result, checkpoints) < 1e-3


async def test_a_server_that_dies_while_its_memory_is_lent_comes_back_with_it(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    launcher = SGLangLauncher(
        checkpoints[0], environment, tmp_path, settings=SGLangSection(colocated=True)
    )
    engine = SGLangEngine(
        checkpoints[0], launcher=launcher, log_dir=tmp_path, settings=WAITS, limits=LIMITS
    )
    await engine.start()
    try:
        generation = asyncio.create_task(engine.generate(request(0)))
        await until_busy(engine, 1)
        await engine.release_memory()
        process = engine.servers[0].process
        assert process is not None
        process.signal(signal.SIGKILL)
        await until(lambda: not process.is_running)
        await asyncio.sleep(2 * LIMITS.supervision.check_every_s)
        assert engine.servers[0].process is process, "restarted while the device was lent"
        await engine.resume_memory()
        await engine.update_weights(weights(checkpoints[1], 1))
        await engine.resume()
        result = await generation
        assert len(result.tokens) == 500
        assert set(result.versions) == {0, 1}
        assert worst_error(PROMPT, result, checkpoints) < 1e-3
    finally:
        await engine.aclose()


async def test_a_launch_that_fails_shows_the_end_of_the_log(
    environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    settings = SGLangSection(arguments=("--no-such-flag",))
    launcher = SGLangLauncher(checkpoints[0], environment, tmp_path, settings=settings)
    engine = SGLangEngine(checkpoints[0], launcher=launcher, log_dir=tmp_path)
    with pytest.raises(EngineError, match=r"(?s)died at start.*--no-such-flag"):
        await engine.start()


def check(results: list[GenerateResult], checkpoints: list[Path], *, versions: set[int]) -> None:
    for result in results:
        assert set(result.versions) <= versions
        assert worst_error(PROMPT, result, checkpoints) < 1e-3
