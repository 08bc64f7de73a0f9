"""Real SGLang servers on the CPU; tests that need one are skipped where it is not installed.

Not where `AREAL_SDK_SGLANG_ENV` names an environment, as CI does: there a missing one is a failure.
"""

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from areal_sdk.backends.remote.client import wait_until_ready
from areal_sdk.backends.remote.options import ServerLimits
from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.starting.processes import ServerProcess, start_process
from areal_sdk.config import EngineSection
from areal_sdk.errors import ConfigError
from areal_sdk.models import make_tiny_model
from areal_sdk.process.network.listen import KeptPort
from areal_sdk_sglang.client import SGLangClient
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment, find_environment
from areal_sdk_sglang.servers import BASE_LABEL, SGLangLauncher
from areal_sdk_sglang.settings import SGLangSection

IN_REPOSITORY = Path(__file__).parents[3] / ".venv-sglang"
START_TIMEOUT_S = 600.0

MakeEngine = Callable[..., Awaitable[SGLangEngine]]

_kept = ExitStack()
atexit.register(_kept.close)


def client_of(server: Server) -> SGLangClient:
    """The client of one of the engine's servers."""
    assert isinstance(server.client, SGLangClient)
    return server.client


def start_server(
    model: Path,
    environment: SGLangEnvironment,
    settings: SGLangSection | None = None,
    *,
    log_path: Path,
    port: int = 0,
) -> ServerProcess:
    """One server that belongs to no engine; it is not ready yet."""
    port = port or _kept.enter_context(KeptPort()).number
    launcher = SGLangLauncher(model, environment, log_path.parent, settings=settings)
    return start_process(launcher.command(0, port=port), port=port, log_path=log_path)


@pytest.fixture(scope="session")
def environment() -> SGLangEnvironment:
    if "AREAL_SDK_SGLANG_ENV" in os.environ:
        return find_environment()
    try:
        return find_environment(IN_REPOSITORY if IN_REPOSITORY.is_dir() else None)
    except ConfigError as exc:
        pytest.skip(f"make sglang-cpu prepares it: {exc}")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Tiny models that differ in their weights only; the first is what servers start with."""
    root = tmp_path_factory.mktemp("checkpoints")
    return [make_tiny_model(root / f"v{seed}", seed=seed, num_layers=2) for seed in range(3)]


@pytest.fixture(scope="session")
def start(
    environment: SGLangEnvironment,
    checkpoints: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., list[ServerProcess]]]:
    """Start servers, several at once, and wait until they sample."""
    started: list[ServerProcess] = []
    logs = tmp_path_factory.mktemp("servers")

    def start_some(
        count: int = 1, *extra: str, kv_tokens: int | None = None
    ) -> list[ServerProcess]:
        settings = SGLangSection(kv_tokens=kv_tokens, arguments=extra)
        servers = [
            start_server(
                *(checkpoints[0], environment, settings),
                log_path=logs / f"{len(started) + i}.log",
            )
            for i in range(count)
        ]
        started.extend(servers)
        asyncio.run(wait_until_they_sample(servers))
        return servers

    yield start_some
    for server in started:
        asyncio.run(server.stop(grace_s=2.0))


async def wait_until_they_sample(servers: list[ServerProcess]) -> None:
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for server in servers:
            group.create_task(_wait_one(server, SGLangClient(server.address, session)))


async def _wait_one(server: ServerProcess, client: SGLangClient) -> None:
    await wait_until_ready(client, timeout_s=START_TIMEOUT_S, is_running=lambda: server.is_running)


@pytest.fixture(scope="session")
def server(start: Callable[..., list[ServerProcess]]) -> ServerProcess:
    """One server for all tests that do not break it."""
    return start()[0]


@pytest.fixture(scope="session")
def second_server(start: Callable[..., list[ServerProcess]]) -> ServerProcess:
    return start()[0]


@pytest.fixture
async def make_engine(checkpoints: list[Path], tmp_path: Path) -> AsyncIterator[MakeEngine]:
    """Engines over servers that are put back to the first checkpoint; closed after the test."""
    engines: list[SGLangEngine] = []

    async def make(
        *addresses: str,
        is_started: bool = True,
        is_reset: bool = True,
        limits: ServerLimits | None = None,
        engine: EngineSection | None = None,
        **settings: object,
    ) -> SGLangEngine:
        async with aiohttp.ClientSession() as session:
            for address in addresses if is_reset else ():
                client = SGLangClient(address, session)
                await client.resume()
                await client.update_from_disk(str(checkpoints[0]), label=BASE_LABEL, flush=True)
        made = SGLangEngine(
            checkpoints[0],
            addresses,
            log_dir=tmp_path,
            engine=engine,
            settings=SGLangSection.read({"transport": "disk", **settings}),
            limits=limits,
        )
        engines.append(made)
        if is_started:
            await made.start()
        return made

    yield make
    for made in engines:
        await made.aclose()
