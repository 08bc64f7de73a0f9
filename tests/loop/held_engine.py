"""An engine whose clients hold an answer in its midst, for tests of gateway processes.

A prompt with `hold` gets one chunk, and no more. A request that was closed before its end leaves a file
`closed` in the directory that the variable `HELD_ENGINE` names.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import areal_sdk
from areal_sdk.engine import EngineClient, EngineEntrance, GenerateChunk, GenerateRequest, Tell
from areal_sdk.testing import ScriptedEngine


class HeldEngine(ScriptedEngine):
    is_shareable = True

    def __init__(self, *, model_dir: Path, log_dir: Path) -> None:
        super().__init__("a short answer", model_dir=model_dir)

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        return EngineEntrance(f"{__file__}::HeldClient", {})


class HeldClient(EngineClient):
    async def told(self, state: Mapping[str, Any]) -> None:
        async def hold(request: GenerateRequest, index: int) -> None:
            if index == 1 and "hold" in self._engine.decode(request.tokens):
                await asyncio.Event().wait()

        self._engine = ScriptedEngine(
            "a short answer", model_dir=Path(self.info.model), on_token=hold
        )

    @property
    def version(self) -> int:
        return 0

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        is_over = False
        try:
            async for chunk in self._engine.stream(request):
                is_over = chunk.finish_reason is not None
                yield chunk
        finally:
            if not is_over:
                (Path(os.environ["HELD_ENGINE"]) / "closed").touch()

    async def aclose(self) -> None:
        await self._engine.aclose()


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("held", HeldEngine)
