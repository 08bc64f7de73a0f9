"""From `[engine]` to an engine that is not started yet.

Starts an engine again when it dies; gives up when it dies too often.

Wherever an engine is open, `supervised` watches it: in training, warm-up, evaluations and `serve` alike.

Whose turn it is on a device that engine and trainer share; where they do not, nothing happens.

The engine's memory goes to the trainer for a step and comes back for the next weights; generation
goes on, requests in flight included, once they are in.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from areal_sdk.builtin import ADDRESS_ENGINE
from areal_sdk.config import Config, EngineSection, Section
from areal_sdk.engine import (
    ConfiguredEngine,
    EngineDeath,
    EngineInfo,
    EngineSettings,
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    InferenceEngine,
)
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.plugins import Plugins
from areal_sdk.process.supervision import Restarts
from areal_sdk.telemetry import waiting
from areal_sdk.trainer import Trainer
from areal_sdk.types import WeightUpdate


def engine_name(section: EngineSection) -> str:
    """The registered engine that `engine.name` means: a name, or addresses of servers."""
    return ADDRESS_ENGINE if "://" in section.name else section.name


def engine_tables(config: Config, plugins: Plugins) -> dict[str, type[Section]]:
    """The table of options that the chosen engine describes, under its name."""
    name = engine_name(config.engine)
    engine = plugins.engines.get(name) if name in plugins.engines else None
    if engine is None or not issubclass(engine, ConfiguredEngine) or engine.table is None:
        return {}
    return {f"engine.{name}": engine.table}


def engine_class(config: Config, plugins: Plugins) -> type[InferenceEngine]:
    """The class that `engine.name` means."""
    return plugins.engines.get(engine_name(config.engine))


def make_engine(
    config: Config, model_dir: Path, *, plugins: Plugins, log_dir: Path
) -> InferenceEngine:
    """The engine that `engine.name` means, not started."""
    section, engine = config.engine, engine_class(config, plugins)
    if config.run.deterministic and not engine.is_repeatable:
        raise ConfigError(
            f"run.deterministic needs an engine that samples the same tokens twice, such as "
            f"{EngineSection().name!r}: {section.name!r} does not"
        )
    options = config.options.get(f"engine.{engine_name(section)}", {})
    if issubclass(engine, ConfiguredEngine):
        return engine.from_settings(
            EngineSettings(section, options, model_dir, log_dir, config.run.deterministic)
        )
    arguments = {"model_dir": model_dir, "log_dir": log_dir, **options}
    return plugins.configure("engine", engine_name(section), arguments)


def check_engine(config: Config, plugins: Plugins) -> None:
    """ConfigError for an engine that no plugin brings, and for settings that it would ignore."""
    name = engine_name(config.engine)
    plugins.engines.reference(name)
    ignored = config.engine.model_fields_set - {"name"}
    stored = {field for field in ignored if getattr(config.engine, field) == _default(field)}
    if ignored == stored or issubclass(engine_class(config, plugins), ConfiguredEngine):
        return
    keys = ", ".join(f"engine.{field}" for field in sorted(ignored - stored))
    raise ConfigError(
        f"{keys} would be ignored: the engine {name!r} is a plugin's, and has options of its own, "
        f"[engine.{name}]"
    )


def check_engine_serves(config: Config, model_dir: Path, plugins: Plugins) -> None:
    """ConfigError where the engine could not serve the model, or not with these settings."""
    engine = engine_class(config, plugins)
    engine.check_model(model_dir)
    if issubclass(engine, ConfiguredEngine):
        make_engine(config, model_dir, plugins=plugins, log_dir=Path())


def _default(field: str) -> object:
    return EngineSection.model_fields[field].default


RESTART_TIMEOUT_S = 600.0


@asynccontextmanager
async def supervised(
    engine: InferenceEngine, *, say: Callable[[str], None]
) -> AsyncIterator["SupervisedEngine"]:
    """The started `engine`, started again whenever it dies until the block ends.

    One that dies too often ends the block with `ChildDiedError`, in an exception group.
    """
    keeper = SupervisedEngine(engine, say=say)
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(keeper.watch(), name="engine keeper")
        try:
            yield keeper
        finally:
            watch.cancel()


@asynccontextmanager
async def fail_with_ranks(trainer: Trainer) -> AsyncIterator[None]:
    """A rank that dies ends the block, also while nothing is asked of it: rollouts can take long."""
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_watch_ranks(trainer), name="trainer watch")
        try:
            yield
        finally:
            watch.cancel()


class SupervisedEngine(InferenceEngine):
    """An engine that may die on the way: what is asked of it meanwhile waits until it is back.

    Requests in flight at its death fail; the runner tries their episodes again, as the same ones.
    """

    def __init__(self, engine: InferenceEngine, *, say: Callable[[str], None]) -> None:
        self.on_outage: Callable[[bool], None] = lambda is_down: None
        """Told when the engine is down, and when it is back."""
        self._engine = engine
        self._say = say
        self._restarts = Restarts()
        self._back = asyncio.Event()
        self._back.set()

    @property
    def is_alive(self) -> bool:
        return self._back.is_set() and self._engine.is_alive

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self.is_alive else None

    async def watch(self) -> None:
        """Runs until cancelled; raises when the engine has died too often."""
        while True:
            death = await self._engine.died()
            self._back.clear()
            self.on_outage(True)
            await self._bring_back(death)
            self._back.set()
            self.on_outage(False)

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
        """Whoever calls has a deadline: of a request, or of a weight update."""
        while not self.is_alive:
            await asyncio.sleep(0)  # let `watch` notice
            await self._back.wait()


async def _watch_ranks(trainer: Trainer) -> None:
    raise await trainer.died()


HANDOVER_TIMEOUT_S = 900.0
"""A server in the middle of its start is waited for."""


async def hand_to_trainer(engine: InferenceEngine) -> None:
    """Hold generation and free the engine's memory. No update may be on its way."""
    if engine.info.shares_device:
        async with waiting("engine: lends its memory", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.release_memory()


async def hand_to_engine(engine: InferenceEngine, trainer: Trainer) -> None:
    """After `publish`: what the trainer does not keep between steps is the engine's again."""
    if engine.info.shares_device:
        await trainer.release_memory()
        async with waiting("engine: takes its memory back", timeout_s=HANDOVER_TIMEOUT_S):
            await engine.resume_memory()


async def update_and_resume(engine: InferenceEngine, update: WeightUpdate) -> None:
    """Serve `update`; requests that were held go on under it."""
    await engine.update_weights(update)
    if engine.info.shares_device:
        await engine.resume()
