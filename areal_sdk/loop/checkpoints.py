"""When to checkpoint, where, and how a run goes on from one."""

from dataclasses import dataclass
from pathlib import Path

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


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint: a directory gets its name only once it is whole."""
    return max(directory.glob(f"{PREFIX}*"), default=None)
