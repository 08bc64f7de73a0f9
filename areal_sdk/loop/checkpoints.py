"""When to checkpoint, where, and how a run goes on from one."""

import re
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

    def has_saved(self, state: RunState) -> bool:
        """Whether the newest checkpoint is of this step."""
        saved = latest_checkpoint(self.directory)
        return saved is not None and (step_of(saved) or 0) >= state.step


def step_of(checkpoint: Path) -> int | None:
    """The step of a checkpoint of the run's own; None for what somebody else put beside it.

    >>> step_of(Path("checkpoints/step-000020"))
    20
    >>> step_of(Path("checkpoints/step-000020-good"))
    """
    match = re.fullmatch(rf"{PREFIX}(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint: a directory gets its name only once it is whole."""
    found = [
        (step, path)
        for path in directory.glob(f"{PREFIX}*")
        if (step := step_of(path)) is not None and path.is_dir()
    ]
    return max(found)[1] if found else None
