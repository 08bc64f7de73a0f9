"""A rollout node hears of a pool of servers, and goes on when some of them do not answer."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.remote.client import Deadlines, wait_until_ready
from areal_sdk.backends.remote.connect import read_model_info
from areal_sdk.backends.remote.http import open_session
from areal_sdk.backends.remote.options import RemoteSection, ServerLimits
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.backends.remote.sharing import Entrance, RemoteEngineClient
from areal_sdk.backends.remote.weights.distributor import label_of
from areal_sdk.engine import GenerateRequest, GenerateResult
from areal_sdk.models import make_tiny_model
from areal_sdk.process.network.listen import KeptPort
from tests.backends.remote.toy_vllm import plugin
from tests.backends.sglang.faulty_proxy import FaultyProxy
from tests.toolbox.waiting import until

RUN = "run"
NEVER_S = 3600.0
"""A test that waits for a deadline of a server fails."""
SOON_S = 120.0
GENERATE = "/inference/v1/generate"
REQUEST = GenerateRequest((10, 11, 12), 20, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


@pytest.fixture(scope="module")
def upstream(model: Path) -> Iterator[str]:
    """The address of a real server, which all servers of a pool stand for through proxies of their own."""
    kept = KeptPort()
    process = subprocess.Popen(
        [sys.executable, str(plugin.SERVER), str(model), str(kept.number)], start_new_session=True
    )
    address = f"http://127.0.0.1:{kept.number}"

    async def ready() -> None:
        async with open_session() as session:
            client = plugin.ToyClient(address, session)
            await wait_until_ready(client, timeout_s=120.0)
            await client.set_label(label_of(RUN, 0))

    asyncio.run(ready())
    yield address
    os.killpg(process.pid, signal.SIGKILL)
    kept.close()
    process.wait()


class Run:
    """The main process's pool over some proxies, and a node that hears of it."""

    def __init__(self, model: Path, upstream: str, stack: AsyncExitStack) -> None:
        self.node = RemoteEngineClient(read_model_info(model, max_context=None), name="node-0")
        self.pool = Pool([])
        self._upstream = upstream
        self._stack = stack
        self._session = open_session()
        self.entrance = Entrance(
            self.pool,
            self._tell,
            client=plugin.ToyClient,
            run=RUN,
            model=model,
            settings=RemoteSection(),
            limits=ServerLimits(
                deadlines=Deadlines(token_s=NEVER_S, control_s=NEVER_S, probe_s=NEVER_S)
            ),
        )
        self.pool.on_change = lambda: None  # each test tells

    async def add(self, proxy: FaultyProxy, *, is_running: bool = True) -> Server:
        """A server that the main process has seen ready."""
        if is_running:
            await self._stack.enter_async_context(proxy.running())
        server = Server(plugin.ToyClient(proxy.address, self._session))
        server.version = 0
        self.pool.servers.append(server)
        await self.pool.set_state(server, State.READY)
        return server

    async def tell(self) -> None:
        async with asyncio.timeout(SOON_S):
            await self.entrance.tell()

    async def sample(self) -> GenerateResult:
        async with asyncio.timeout(SOON_S):
            return await self.node.generate(REQUEST)

    def state_of(self, server: Server) -> State:
        """The state of a server as the node sees it."""
        (seen,) = [m for m in self.node._pool.servers if m.address == server.address]
        return seen.state

    async def aclose(self) -> None:
        await self.node.aclose()
        await self._session.close()

    async def _tell(self, state: Mapping[str, Any]) -> None:
        await self.node.told(state)


@pytest.fixture
async def run(model: Path, upstream: str) -> AsyncIterator[Run]:
    async with AsyncExitStack() as stack:
        run = Run(model, upstream, stack)
        stack.push_async_callback(run.aclose)
        yield run


def silent(upstream: str) -> FaultyProxy:
    """A server that takes every request and answers none."""
    proxy = FaultyProxy(upstream)
    proxy.silence.set()
    return proxy


async def test_a_server_that_hangs_holds_up_no_news_and_no_other_server(
    run: Run, upstream: str
) -> None:
    hung, well = silent(upstream), FaultyProxy(upstream)
    (first, second) = [await run.add(proxy) for proxy in (hung, well)]
    await run.tell()
    assert len((await run.sample()).tokens) == 20
    assert GENERATE in well.requests
    assert run.state_of(first) is not State.READY

    second.version = first.version = 1
    await run.tell()
    assert run.node.version == 1

    run.pool.running.clear()
    await run.tell()
    waiting = asyncio.create_task(run.sample())
    assert not (await asyncio.wait({waiting}, timeout=0.3))[0], "a paused engine samples nothing"
    run.pool.running.set()
    await run.tell()
    assert len((await waiting).tokens) == 20


async def test_a_server_that_is_down_at_first_is_used_once_it_answers(
    run: Run, upstream: str
) -> None:
    with KeptPort() as kept:
        late = FaultyProxy(upstream, port=kept.number)
        server = await run.add(late, is_running=False)
        await run.tell()
        sampling = asyncio.create_task(run.sample())
        assert not (await asyncio.wait({sampling}, timeout=0.3))[0]
        async with late.running():
            assert len((await sampling).tokens) == 20
            assert run.state_of(server) is State.READY


async def test_a_pause_ends_requests_elsewhere_while_one_server_hangs_and_a_resume_comes_through(
    run: Run, upstream: str
) -> None:
    """The hung server's requests are not waited for: the pause holds, and so does the resume after it."""
    proxies = [FaultyProxy(upstream), FaultyProxy(upstream)]
    for proxy in proxies:
        await run.add(proxy)
    await run.tell()
    await until(lambda: len(run.node._pool.ready) == 2, timeout_s=SOON_S)
    long = GenerateRequest((10, 11, 12), 700, ignore_eos=True)
    running = [asyncio.create_task(run.node.generate(long)) for _ in range(4)]
    # A silence that begins before a proxy has read a request would hold that request for ever.
    await until(lambda: all(proxy.passed_on.count(GENERATE) == 2 for proxy in proxies))
    hung, well = run.node._pool.servers
    proxies[0].silence.set()
    run.pool.running.clear()
    telling = asyncio.create_task(run.entrance.tell())
    await until(lambda: not run.node._pool.running.is_set() and not well.num_running)
    assert not telling.done(), "the hung server has not ended its requests"

    run.pool.running.set()
    proxies[0].silence.clear()
    await run.tell()
    await telling
    async with asyncio.timeout(SOON_S):
        results = await asyncio.gather(*running)
    assert [len(result.tokens) for result in results] == [700] * 4
    assert not hung.is_interrupting


async def test_news_are_followed_in_the_order_in_which_they_come(run: Run, upstream: str) -> None:
    server = await run.add(FaultyProxy(upstream))
    await run.tell()
    await until(lambda: run.state_of(server) is State.READY, timeout_s=SOON_S)
    states = []
    for number in range(20):
        server.version = number
        server.state = State.BEHIND if number % 2 else State.READY
        (run.pool.running.clear if number % 3 else run.pool.running.set)()
        states.append(run.entrance.state())
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(run.node.told(state) for state in states))
    assert run.node.version == 19
    assert run.state_of(server) is State.BEHIND
    assert not run.node._pool.running.is_set()


async def test_a_server_that_left_the_engine_is_forgotten_and_its_requests_go_on_elsewhere(
    run: Run, upstream: str
) -> None:
    gone = await run.add(FaultyProxy(upstream))
    await run.tell()
    long = GenerateRequest((10, 11, 12), 700, ignore_eos=True)
    stream = run.node.stream(long)
    num_tokens = len((await anext(stream)).tokens)
    stays = await run.add(FaultyProxy(upstream))
    run.pool.servers.remove(gone)
    await run.tell()
    async for chunk in stream:
        num_tokens += len(chunk.tokens)
    assert num_tokens == 700
    assert [server.address for server in run.node._pool.servers] == [stays.address]
    assert not any(gone.address in task.get_name() for task in asyncio.all_tasks())


async def test_one_server_that_refuses_to_be_inspected_is_left_out(run: Run, upstream: str) -> None:
    odd = FaultyProxy(upstream, fail={"/v1/models": 10**6})
    server = await run.add(odd)
    await run.add(FaultyProxy(upstream))
    await run.tell()
    for _ in range(4):
        assert len((await run.sample()).tokens) == 20
    assert run.state_of(server) is not State.READY
    assert "/inference/v1/generate" not in odd.requests
