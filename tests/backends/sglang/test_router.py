"""A real sglang-router in front of real servers: it places requests, weights go past it."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.process.network.listen import KeptPort
from areal_sdk.types import WeightUpdate
from areal_sdk_sglang.client import SGLangClient
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment
from areal_sdk_sglang.servers import SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection
from tests.backends.sglang.conftest import MakeEngine, client_of
from tests.backends.sglang.deadlines import LIMITS, WAITS
from tests.backends.sglang.rescoring import worst_error
from tests.toolbox.waiting import until

pytestmark = pytest.mark.slow

PROMPT = tuple(b"router")


def weights(checkpoint: Path, version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoint / "model.safetensors"))


class RouterProcess:
    """A router without servers, which can be started again at its address."""

    def __init__(self, python: Path, log: Path) -> None:
        with KeptPort() as first, KeptPort() as second:
            port, metrics = first.number, second.number
        self.address = f"http://127.0.0.1:{port}"
        self._log = log
        self._command = [str(python), "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
        self._command += ["--port", str(port), "--prometheus-port", str(metrics)]
        self._command += ["--disable-retries", "--disable-circuit-breaker", "--log-level", "warn"]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=60)


@pytest.fixture
def process(environment: SGLangEnvironment, tmp_path: Path) -> Iterator[RouterProcess]:
    probe = [str(environment.python), "-c", "import sglang_router"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this SGLang environment has no sglang-router: make sglang-cpu in a new one")
    process = RouterProcess(environment.python, tmp_path / "router.log")
    process.start()
    asyncio.run(_answers(process.address))
    yield process
    process.kill()


@pytest.fixture
def router(process: RouterProcess) -> str:
    return process.address


async def _answers(address: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            try:
                await SGLangClient(address, session).workers()
            except EngineError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_requests_go_through_the_router_and_weights_past_it(
    router: str, environment: SGLangEnvironment, checkpoints: list[Path], tmp_path: Path
) -> None:
    settings = SGLangSection(servers=2, router=router, request_wait_s=WAITS.request_wait_s)
    launcher = SGLangLauncher(checkpoints[0], environment, tmp_path, settings=settings)
    engine = SGLangEngine(
        checkpoints[0], launcher=launcher, log_dir=tmp_path, settings=settings, limits=LIMITS
    )
    await engine.start()
    try:
        await engine.update_weights(weights(checkpoints[1], 1))
        prompts = [bytes([i]) * 20 + bytes(PROMPT) for i in range(65, 73)]
        generations = [
            asyncio.create_task(engine.generate(GenerateRequest(tuple(p), 500, ignore_eos=True)))
            for p in prompts
        ]
        await asyncio.gather(*(until_sampling(client_of(member)) for member in engine.servers))
        await engine.update_weights(weights(checkpoints[2], 2))
        victim = engine.servers[0]
        assert victim.process is not None
        victim.process.signal(signal.SIGKILL)
        async with asyncio.timeout(60):  # long before it is back
            while await behind(router) != {engine.servers[1].address}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        results = await asyncio.gather(*generations)
        assert [len(result.tokens) for result in results] == [500] * 8
        assert engine.num_failovers >= 1
        assert any(len(set(result.versions)) > 1 for result in results)
        for prompt, result in zip(prompts, results, strict=True):
            assert worst_error(tuple(prompt), result, checkpoints) < 1e-3

        async with aclosing(engine.stream(GenerateRequest(PROMPT, 500, ignore_eos=True))) as chunks:
            first = await anext(chunks)
        assert (len(first.tokens), set(first.versions)) == (1, {2}), "held back until its end"
        async with asyncio.timeout(60):  # the router passes on that we left
            while (await client_of(engine.servers[1]).loads())["num_running_reqs"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await until(lambda: victim.state == "ready", timeout_s=600)
        await asyncio.wait_for(engine.generate(GenerateRequest(PROMPT, 5, ignore_eos=True)), 60)
        assert await behind(router) == {member.address for member in engine.servers}
    finally:
        await engine.aclose()
    assert await behind(router) == set()


async def test_requests_outlive_the_router(
    process: RouterProcess,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    engine = await make_engine(server.address, router=process.address)
    generation = asyncio.create_task(engine.generate(GenerateRequest(PROMPT, 500, ignore_eos=True)))
    await until_sampling(client_of(engine.servers[0]))
    process.kill()
    await until(lambda: engine.num_failovers > 0)
    assert engine.servers[0].state == "ready"
    process.start()
    result = await generation
    assert len(result.tokens) == 500
    assert worst_error(PROMPT, result, checkpoints) < 1e-3


async def test_a_router_of_somebody_else_is_refused(
    router: str, server: ServerProcess, make_engine: MakeEngine
) -> None:
    async with aiohttp.ClientSession() as session:
        await SGLangClient(router, session).add_worker(server.address)
        async with asyncio.timeout(30):
            while not await behind(router):  # noqa: ASYNC110 - it announces nothing
                await asyncio.sleep(0.05)
    other = server.address.replace("127.0.0.1", "localhost")
    with pytest.raises(EngineError, match=r"also serves http://127.*a router of its own"):
        await make_engine(other, router=router)


async def behind(router: str) -> set[str]:
    async with aiohttp.ClientSession() as session:
        return set(await SGLangClient(router, session).workers())


async def until_sampling(client: SGLangClient) -> None:
    async with asyncio.timeout(60):
        while not (await client.loads())["num_running_reqs"]:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0.02)
