"""Brings the embedded engine back when its process dies; gives up when it dies too often."""

import asyncio
from collections.abc import Callable

from areal_sdk.backends.local import LocalEngine
from areal_sdk.engine import InferenceEngine
from areal_sdk.errors import EngineError
from areal_sdk.launch import Restarts
from areal_sdk.telemetry import waiting
from areal_sdk.types import WeightUpdate

UPDATE_TIMEOUT_S = 600.0
RESTART_TIMEOUT_S = 600.0


class EngineKeeper:
    """Delivers weights to an engine that may die on the way.

    Episodes that lose their engine are tried again by the runner, as the same episodes. Engines
    that look after their own servers need no keeper: for them this only delivers.
    """

    def __init__(self, engine: InferenceEngine, *, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._say = say
        self._restarts = Restarts()
        self._is_up = asyncio.Event()
        self._is_up.set()

    async def watch(self) -> None:
        """Runs until cancelled; raises when the engine has died too often."""
        if not isinstance(self._engine, LocalEngine):
            return
        while True:
            child = self._engine.child
            end = await asyncio.shield(child.exited)
            self._is_up.clear()
            pause_s = self._restarts.pause_after(child)
            self._say(f"warning: the engine {end}: starting it again; log: {child.log_path}")
            await asyncio.sleep(pause_s)
            async with waiting("engine: restart", timeout_s=RESTART_TIMEOUT_S):
                await self._engine.restart()
            self._is_up.set()

    async def deliver(self, update: WeightUpdate) -> None:
        """Return when the engine serves `update`, also if it had to be started again for it."""
        async with waiting(f"engine: weights v{update.version}", timeout_s=UPDATE_TIMEOUT_S):
            while True:
                await self._is_up.wait()
                try:
                    await self._engine.update_weights(update)
                except EngineError:
                    if not self._has_died():
                        raise
                    await asyncio.sleep(0)  # let `watch` notice
                else:
                    return

    def _has_died(self) -> bool:
        return isinstance(self._engine, LocalEngine) and (
            not self._is_up.is_set() or self._engine.child.exited.done()
        )
