"""An engine of servers that only sleep, and an agent whose lengths and tools are drawn from given tails.

For the planner's comparison with measured runs: what sleeps can be several on a machine with two cores.
The gateway, the gate, the buffer and the trainer are those of every run. A server decodes all of its
requests together, a token a step; a step takes `step_s + beside_s` for each request beside the first.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import areal_sdk
from areal_sdk import Agent, EpisodeContext, Task
from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.flow import MAX_IMBALANCE
from areal_sdk.types import FinishReason, WeightUpdate

CONTEXT = 4096
VOCABULARY = 259


@dataclass(eq=False)
class Request:
    """One request at a server."""

    num_left: int
    prefill_s: float
    tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PacedServer:
    """Keeps to a schedule: where the event loop comes late, the next steps sleep less."""

    def __init__(self, engine: "PacedEngine") -> None:
        self._engine = engine
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._came = asyncio.Event()

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._came.set()

    def drop(self, request: Request) -> None:
        for requests in (self.waiting, self.running):
            if request in requests:
                requests.remove(request)

    async def serve(self) -> None:
        engine, clock = self._engine, asyncio.get_running_loop().time
        generator = random.Random(0)
        due = clock()
        while True:
            if not self.load:
                self._came.clear()
                await self._came.wait()
                due = clock()
            if not engine.may_sample.is_set():
                await engine.may_sample.wait()
                due = clock()
            room = engine.slots - len(self.running)
            fresh, self.waiting = self.waiting[:room], self.waiting[room:]
            self.running += fresh
            if not self.running:
                continue
            due += sum(request.prefill_s for request in fresh)
            due += engine.step_s + engine.beside_s * (len(self.running) - 1)
            await asyncio.sleep(max(0.0, due - clock()))
            for request in tuple(self.running):
                request.tokens.append(generator.randrange(256))
                request.versions.append(engine.version)
                request.began.set()
                request.num_left -= 1
                if not request.num_left:
                    self.running.remove(request)
                    request.ended.set()


class PacedEngine(InferenceEngine):
    """`servers` of them; a session stays where it was, others go to the least loaded."""

    def __init__(
        self,
        *,
        model_dir: Path,
        log_dir: Path,
        servers: int = 1,
        step_s: float = 0.010,
        beside_s: float = 0.001,
        prefill_s: float = 0.0001,
        swap_s: float = 0.05,
        slots: int = 16,
    ) -> None:
        self._info = EngineInfo(str(model_dir), CONTEXT, VOCABULARY, stop_tokens=(258,))
        self._num_servers = servers
        self.step_s, self.beside_s, self.prefill_s = step_s, beside_s, prefill_s
        self.swap_s, self.slots = swap_s, slots
        self.may_sample = asyncio.Event()
        self.may_sample.set()
        self._version = 0
        self._servers: list[PacedServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._homes: dict[str, tuple[PacedServer, int]] = {}
        """Server of each session, and the number of tokens that are cached there."""

    async def start(self) -> None:
        self._servers = [PacedServer(self) for _ in range(self._num_servers)]
        self._tasks = [asyncio.create_task(server.serve()) for server in self._servers]

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> int:
        return self._version

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        server, cached = self._place(request.session)
        num_new = len(request.tokens) - cached
        work = Request(request.max_new_tokens, self.prefill_s * num_new)
        server.add(work)
        try:
            await work.began.wait()
            yield _chunk(work, 0, 1)
            await work.ended.wait()
            self._homes[request.session] = (server, len(request.tokens) + len(work.tokens))
            yield _chunk(work, 1, len(work.tokens), FinishReason.LENGTH, num_cached=cached)
        finally:
            server.drop(work)

    async def update_weights(self, update: WeightUpdate) -> None:
        self.may_sample.clear()
        await asyncio.sleep(self.swap_s)
        self._version = update.version
        self._homes = {session: (server, 0) for session, (server, _) in self._homes.items()}
        self.may_sample.set()

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _place(self, session: str) -> tuple[PacedServer, int]:
        least = min(self._servers, key=lambda server: server.load)
        server, cached = self._homes.get(session, (least, 0))
        if server.load - least.load > MAX_IMBALANCE:
            return least, 0
        return server, cached


def _chunk(
    work: Request, start: int, stop: int, reason: FinishReason | None = None, *, num_cached: int = 0
) -> GenerateChunk:
    tokens = tuple(work.tokens[start:stop])
    versions = tuple(work.versions[start:stop])
    logprobs = (-5.5,) * len(tokens)
    if reason is None and not work.num_left:
        reason = None  # the last chunk carries it
    return GenerateChunk(tokens, logprobs, versions, reason, num_cached=num_cached)


class Paced(Agent):
    """The reward varies within a group whatever the model says, so that every step trains."""

    def __init__(
        self,
        *,
        calls: int = 2,
        length: float = 24.0,
        length_sigma: float = 0.5,
        tool_s: float = 0.2,
        tool_sigma: float = 0.5,
    ) -> None:
        self.calls = calls
        self.length, self.length_sigma = length, length_sigma
        self.tool_s, self.tool_sigma = tool_s, tool_sigma

    async def run(self, task: Task, context: EpisodeContext) -> float:
        generator = random.Random(context.seed)
        messages = [{"role": "user", "content": task.data["question"]}]
        for index in range(self.calls):
            length = self.length * generator.lognormvariate(0.0, self.length_sigma)
            turn = await context.generate(
                messages, max_new_tokens=round(min(400.0, max(2.0, length)))
            )
            messages += [turn.message, {"role": "user", "content": "ok"}]
            if index + 1 < self.calls and self.tool_s:
                await asyncio.sleep(self.tool_s * generator.lognormvariate(0.0, self.tool_sigma))
        return generator.random()


def tasks(split: str) -> Iterator[Task]:
    for index in range(1000):
        yield Task(f"{split}-{index}", {"question": f"Say something about {index}."})


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("paced", PacedEngine)
