"""When to checkpoint, where, and how a run goes on from one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.errors import ArealError
from areal_sdk.loop.state import RunState
from areal_sdk.trainer.client import TrainerClient

PREFIX = "step-"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run: `checkpoints/step-000020`, newest last."""

    directory: Path
    every: int
    keep: int

    def is_due(self, step: int) -> bool:
        return bool(self.every) and step % self.every == 0

    async def save(self, trainer: TrainerClient, state: RunState) -> Path:
        """Save, then forget the oldest. A failed save leaves the earlier ones as they were."""
        path = self.directory / f"{PREFIX}{state.step:06d}"
        await trainer.save(path, state.to_json(), keep=self.keep)
        return path

    def has_saved(self, state: RunState) -> bool:
        """Whether the newest checkpoint is of this step."""
        saved = latest_checkpoint(self.directory)
        return saved is not None and step_of(saved) >= state.step

    async def save_last(
        self,
        trainer: TrainerClient,
        state: RunState,
        *,
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Save what is not saved yet, if it can be done: the run ends early, for another reason."""
        if not state.step or self.has_saved(state):
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.save(trainer, state)
        except TimeoutError:
            say(f"warning: step {state.step} was not saved: that takes over {timeout_s:g} s")
        except ArealError as exc:
            say(f"warning: step {state.step} was not saved: {exc}")


def step_of(checkpoint: Path) -> int:
    """
    >>> step_of(Path("checkpoints/step-000020"))
    20
    """
    return int(checkpoint.name.removeprefix(PREFIX))


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint: a directory gets its name only once it is whole."""
    return max(directory.glob(f"{PREFIX}*"), default=None)
