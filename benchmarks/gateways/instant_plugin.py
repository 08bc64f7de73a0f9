"""The trivial engine as a plugin of `areal-sdk serve`: in the main process, and in each gateway process."""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from servers import InstantEngine

import areal_sdk
from areal_sdk.engine import (
    EngineClient,
    EngineEntrance,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    Tell,
)


class SharedInstantEngine(InstantEngine):
    is_shareable = True

    def __init__(self, *, model_dir: Path, log_dir: Path) -> None:
        super().__init__(model_dir)

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        return EngineEntrance(f"{__file__}::InstantClient", {})


class InstantClient(EngineClient):
    """Answers by itself: what is measured is the gateway."""

    def __init__(self, info: EngineInfo, *, name: str) -> None:
        super().__init__(info, name=name)
        self._engine = InstantEngine(Path(info.model))

    async def told(self, state: Mapping[str, Any]) -> None: ...

    @property
    def version(self) -> int:
        return 0

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._engine.stream(request)

    async def aclose(self) -> None: ...


@areal_sdk.hookimpl
def register_engines(register: Callable[[str, object], None]) -> None:
    register("instant", SharedInstantEngine)
