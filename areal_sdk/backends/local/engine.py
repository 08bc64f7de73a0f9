"""`LocalEngine`: the embedded engine as the rest of the SDK sees it. No torch in this process."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.backends.local.protocol import EngineLoad, LocalOptions, ModelCalls
from areal_sdk.backends.local.push import push
from areal_sdk.backends.local.requests import Requester, engine_errors
from areal_sdk.config import EngineSection
from areal_sdk.engine import (
    ConfiguredEngine,
    EngineDeath,
    EngineEntrance,
    EngineInfo,
    EngineSettings,
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    Tell,
    collect,
)
from areal_sdk.errors import ConfigError, EngineError, require_package
from areal_sdk.launch import LocalLauncher
from areal_sdk.launcher import Launcher
from areal_sdk.models.checkpoint import check_safetensors, fingerprint
from areal_sdk.process import JSON, REPEATABLE_MATH, Child, ProcessSpec, Reservation, gpus_of
from areal_sdk.process.network.handshake import join_address
from areal_sdk.process.services import Answer, Client
from areal_sdk.process.threads import in_thread
from areal_sdk.types import WeightUpdate

UPDATE_TIMEOUT_S = 300.0
"""Seconds for the engine to check new weights, beside its running requests, and to copy them in."""
CALL_TIMEOUT_S = 60.0
"""Seconds for an answer that needs no weights and no sampling."""
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

CLIENT = "areal_sdk.backends.local.client:LocalEngineClient"


@dataclass(frozen=True, slots=True)
class _Entrance:
    tell: Tell
    host: str
    token: str


class LocalEngine(ConfiguredEngine):
    """Runs a Llama, Qwen2 or Qwen3 checkpoint, dense or with experts, in a process of its own, on a CPU or one GPU.

    A dead worker fails the streams in flight with an EngineError that names its log; `restart`
    brings it back with the last weights.
    """

    is_repeatable = True
    is_shareable = True
    accepts = ("all", "changed")

    @classmethod
    def check_installed(cls) -> None:
        require_package("torch", extra="train", needed_for="the local engine")

    @classmethod
    def check_model(cls, directory: Path) -> None:
        check_safetensors(directory)
        try:
            Architecture.load(directory)
        except EngineError as exc:
            raise ConfigError(str(exc)) from None

    @classmethod
    def gpus(cls, section: EngineSection, options: Mapping[str, Any]) -> Mapping[str, int] | None:
        return None if ":" in section.device else {"engine": 1} if section.device != "cpu" else {}

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "LocalEngine":
        options = LocalOptions(
            **settings.section.model_dump(), deterministic=settings.deterministic
        )
        return cls(
            settings.model_dir,
            log_dir=settings.log_dir,
            options=options,
            launcher=settings.launcher,
        )

    def __init__(
        self,
        model_dir: Path,
        *,
        log_dir: Path,
        options: LocalOptions | None = None,
        name: str = "engine",
        launcher: Launcher | None = None,
    ) -> None:
        """`launcher` places the worker; default: on this machine."""
        options = options or LocalOptions()
        self._model_dir = model_dir
        self._launcher = launcher or LocalLauncher(log_dir=log_dir)
        self._deterministic = options.deterministic
        self._spec = ProcessSpec(
            name=name,
            entry="areal_sdk.backends.local.worker:main",
            args={"model_dir": str(model_dir), "options": options.model_dump(mode="json")},
            env=REPEATABLE_MATH if options.deterministic else {},
            threads=options.threads,
            reserves=Reservation(options.threads, gpus_of(options.device)),
        )
        self._child: Child | None = None
        self._info: EngineInfo | None = None
        self._version = 0
        self._weights: WeightUpdate | None = None
        """The last update that brought weights; applied again after a restart."""
        self._base = ""
        """Fingerprint of the weights that the first worker was started with."""
        self._entrance: _Entrance | None = None
        """The entrance for other processes; None if there is none."""
        self._update_lock = asyncio.Lock()
        self.last_pause_s = 0.0
        """Seconds for which the last weight update held generation."""

    async def start(self) -> None:
        if self._child is not None:
            raise EngineError("the local engine is already started")
        self.check_installed()
        with engine_errors():
            [self._child] = await self._launcher.launch([self._spec])
        self._base = self._base or await self._fingerprint()
        hello = self._child.hello
        self._info = EngineInfo(
            model=str(self._model_dir),
            max_context=hello["max_context"],
            vocab_size=hello["vocab_size"],
            stop_tokens=tuple(hello["stop_tokens"]),
            constrains_json=find_spec("llguidance") is not None,
        )

    @property
    def pid(self) -> int | None:
        return self.child.pid if self.is_alive else None

    @property
    def is_alive(self) -> bool:
        return self._child is not None and not self._child.exited.done()

    async def died(self) -> EngineDeath:
        child = self.child
        ended = await asyncio.shield(child.exited)
        return EngineDeath(str(ended), child.log_path)

    async def restart(self) -> None:
        """End the worker if it still runs, start a new one, and give it the last weights."""
        async with self._update_lock:
            version = self._version
            await self._stop()
            await self.start()
            if self._weights is not None:
                await self._send_update(self._weights)
            await self._send_update(WeightUpdate(version, None))
            if self._entrance is not None:
                await self._entrance.tell(await self._listen(self._entrance))

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the local engine is not started: await start() first")
        return self._info

    @property
    def version(self) -> int:
        return self._version

    @property
    def child(self) -> Child:
        """The worker process: its pid, its log, and when it ended."""
        if self._child is None:
            raise EngineError("the local engine is not running: await start() first")
        return self._child

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        async with aclosing(self._requester.chunks(request, is_streamed=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """The whole completion, sent once, which is cheaper than a stream."""
        async with aclosing(self._requester.chunks(request, is_streamed=False)) as chunks:
            return await collect(chunks)

    async def abort(self, request_id: str) -> None:
        """End the requests of this id now: their streams finish with `FinishReason.ABORT`."""
        if not request_id:
            raise EngineError("abort needs the request_id that the request was sent with")
        await self._call(ModelCalls.abort, request_id)

    async def load(self) -> EngineLoad:
        """The present work of the worker."""
        return await self._call(ModelCalls.load)

    async def update_weights(self, update: WeightUpdate) -> None:
        async with self._update_lock:
            await self._send_update(update)
            if update.path is not None:
                self._weights = update

    async def pause(self) -> None:
        await self._call(ModelCalls.pause)

    async def resume(self) -> None:
        await self._call(ModelCalls.resume)

    async def aclose(self) -> None:
        await self._stop()

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        self._entrance = _Entrance(tell, host, secrets.token_urlsafe(24))
        return EngineEntrance(CLIENT, await self._listen(self._entrance))

    async def _listen(self, entrance: "_Entrance") -> dict[str, JSON]:
        """Have the worker listen for clients. Returns the address and the key that they need."""
        host = self.child.host or entrance.host  # its own machine, where a launcher chose another
        port = await self._call(ModelCalls.open_entrance, host, entrance.token)
        return {
            "address": join_address(host, port),
            "token": entrance.token,
            "deterministic": self._deterministic,
        }

    @property
    def _requester(self) -> Requester:
        return Requester(self.child, self.info, self._deterministic)

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.aclose()

    async def _send_update(self, update: WeightUpdate) -> None:
        if update.contents == "changed" and self._base != await self._fingerprint():
            raise EngineError(
                f"the weights in {self._model_dir} have changed since the engine was started, and version "
                f"{update.version} holds only the tensors that differ from the old ones: put the old "
                "files back"
            )
        told = update
        if (
            update.path is not None
            and self.child.host
            and not await self._call(ModelCalls.sees, update.path)
        ):
            with engine_errors():
                told = replace(update, path=await push(self.child, Path(update.path)))
        self.last_pause_s = await self._call(
            ModelCalls.update_weights, told, timeout_s=UPDATE_TIMEOUT_S
        )
        self._version = update.version

    async def _fingerprint(self) -> str:
        return await in_thread(lambda: fingerprint(self._model_dir), name="fingerprint model")

    async def _call(
        self,
        method: Callable[[ModelCalls, Unpack[Ts]], Answer[R]],
        *arguments: *Ts,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> R:
        with engine_errors():
            client = Client[ModelCalls](self.child)
            return await client.call(method, *arguments, timeout_s=timeout_s)
