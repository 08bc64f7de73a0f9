"""The launcher contract, and the policy of restarting children that died."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from areal_sdk.errors import ChildDiedError
from areal_sdk.process import Child, ProcessSpec


class Launcher(Protocol):
    """Places the processes of one job, somewhere."""

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start all of `specs` as ranks 0, 1, ... of one job, or none of them.

        Each entry finds `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` in its
        environment. Returns, in the order of `specs`, when every entry has called `ready`.
        """

    async def aclose(self) -> None:
        """Release what the launcher itself holds. Children belong to the caller of `launch`."""


async def first_exit(children: Sequence[Child]) -> Child:
    """Wait until one of `children` ends, however that happens, and return it.

    Ranks that go on without it would wait in a collective: close them.
    """
    await asyncio.wait([child.exited for child in children], return_when=asyncio.FIRST_COMPLETED)
    return next(child for child in children if child.exited.done())


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `max_restarts` within `window_s`, each after a longer pause."""

    max_restarts: int = 3
    """0: the first death ends the run."""
    window_s: float = 600.0
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0


class Restarts:
    """The restarts of one child so far.

    while True:
        await child.exited
        await asyncio.sleep(restarts.pause_after(f"{child.name} died", log_path=child.log_path))
        child = await spawn(child.spec, log_dir=...)
    """

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self.policy = policy or RestartPolicy()
        self.count = 0
        self._recent: deque[float] = deque()

    def pause_after(self, death: str, *, log_path: Path, now: float | None = None) -> float:
        """How long to wait before the next start; `ChildDiedError` when there were too many deaths."""
        now = time.monotonic() if now is None else now
        while self._recent and now - self._recent[0] > self.policy.window_s:
            self._recent.popleft()
        if len(self._recent) >= self.policy.max_restarts:
            often = f" {len(self._recent) + 1} times in {self.policy.window_s:g} s"
            raise ChildDiedError(f"{death}{often if self._recent else ''}; log: {log_path}")
        pause = min(self.policy.max_pause_s, self.policy.first_pause_s * 2.0 ** len(self._recent))
        self._recent.append(now)
        self.count += 1
        return pause
