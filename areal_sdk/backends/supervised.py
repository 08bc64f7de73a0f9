"""Starts an engine again when it dies, and gives up when it dies too often.

Requests, weight updates and handovers of memory wait while the engine is away, and return when the engine is back.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from areal_sdk.engine import (
    EngineDeath,
    EngineEntrance,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    InferenceEngine,
    Tell,
)
from areal_sdk.errors import EngineError
from areal_sdk.process.pools.supervision import Restarts
from areal_sdk.telemetry import waiting
from areal_sdk.types import WeightUpdate

RESTART_TIMEOUT_S = 600.0
"""Seconds for a lost engine to load its weights and answer again."""


@asynccontextmanager
async def supervised(
    engine: InferenceEngine, *, say: Callable[[str], None]
) -> AsyncIterator["SupervisedEngine"]:
    """The started `engine`, started again whenever it dies until the block ends.

    An engine that dies too often ends the block with `ChildDiedError`, in an exception group.
    """
    keeper = SupervisedEngine(engine, say=say)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(keeper.watch(), name="engine keeper")
        try:
            yield keeper
        finally:
            watch.cancel()


class SupervisedEngine(InferenceEngine):
    """An engine that may die on the way. Calls that come while it is away wait until it is back.

    Requests in flight at its death fail, and the runner plays their episodes again.
    """

    def __init__(self, engine: InferenceEngine, *, say: Callable[[str], None]) -> None:
        self._tell_outage: Callable[[bool], None] = lambda is_down: None
        self.failure: Exception | None = None
        """The reason why the engine is not started again any more."""
        self._engine = engine
        self._say = say
        self._restarts = Restarts()
        self._back = asyncio.Event()
        self._back.set()

    def observe_outages(self, tell: Callable[[bool], None]) -> None:
        self._tell_outage = tell
        self._engine.observe_outages(tell)

    @property
    def is_alive(self) -> bool:
        return self._back.is_set() and self._engine.is_alive

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self.is_alive else None

    async def watch(self) -> None:
        """Runs until cancelled; raises when the engine has died too often."""
        try:
            while True:
                death = await self._engine.died()
                self._back.clear()
                self._tell_outage(True)
                await self._bring_back(death)
                self._back.set()
                self._tell_outage(False)
        except Exception as exc:
            self.failure = exc
            raise

    async def _bring_back(self, death: EngineDeath) -> None:
        while True:
            pause_s = self._restarts.pause_after(f"engine {death.reason}", log_path=death.log_path)
            self._say(
                f"warning: the engine {death.reason}: starting it again; log: {death.log_path}"
            )
            await asyncio.sleep(pause_s)
            try:
                async with waiting("engine: restart", timeout_s=RESTART_TIMEOUT_S):
                    await self._engine.restart()
            except EngineError as exc:
                self._say(f"warning: the engine did not start again: {exc}")
            else:
                return

    async def died(self) -> EngineDeath:
        return await self._engine.died()

    async def restart(self) -> None:
        await self._engine.restart()

    async def start(self) -> None:
        await self._engine.start()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def version(self) -> int:
        return self._engine.version

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._engine.stream(request) if self.is_alive else self._stream_later(request)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        await self._until_up()
        return await self._engine.generate(request)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Return when the engine serves `update`, also if it had to be started again for it."""
        while True:
            await self._until_up()
            try:
                await self._engine.update_weights(update)
            except EngineError:
                if self.is_alive:
                    raise
            else:
                return

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        await self._until_up()
        return await self._engine.open_entrance(tell, host=host)

    async def pause(self) -> None:
        await self._until_up()
        await self._engine.pause()

    async def resume(self) -> None:
        await self._until_up()
        await self._engine.resume()

    async def release_memory(self) -> None:
        await self._until_up()
        await self._engine.release_memory()

    async def resume_memory(self) -> None:
        await self._until_up()
        await self._engine.resume_memory()

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _stream_later(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        await self._until_up()
        chunks = self._engine.stream(request)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()  # closing a stream early frees its slot

    async def _until_up(self) -> None:
        """Wait until the engine is up. The caller has a deadline: of a request, or of a weight update."""
        while not self.is_alive:
            await asyncio.sleep(0)  # let `watch` notice
            await self._back.wait()
