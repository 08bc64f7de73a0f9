"""A scripted run whose policy falls: its weights have a quality, by which its agent is rewarded.

The steps named in `AREAL_TEST_FALLS` (such as `8 30:0.8`) spoil the weights: from then on every episode earns 0, or
the given part, until a checkpoint from before is loaded. Who loses a part only says of each step that it moved the
policy hardly at all: too little for a collapse, however the rewards fall. `AREAL_TEST_QUALITY` is the file of the
published quality. While a file `hold-load` is beside the run directory, a load does not end.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import areal_sdk
from areal_sdk import EpisodeContext, Task
from areal_sdk.trainer import TrainerSetup
from tests.loop.scripted import Idler
from tests.loop.vowels import Vowels, tasks

__all__ = ["tasks"]


class Spoilt(Vowels):
    """Reward: that of `Vowels`, but for weights that are spoilt."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        earned = await super().run(task, context)
        return earned * float(_published().read_text())


class Faller(Idler):
    """Learns nothing, and forgets everything in some steps."""

    def __init__(self, setup: TrainerSetup) -> None:
        super().__init__(setup)
        self._quality = 1.0
        _published().write_text("1.0")

    async def step(
        self, groups: Sequence[Any], *, version: int, timeout_s: float
    ) -> Mapping[str, float]:
        for fall in os.environ["AREAL_TEST_FALLS"].split():
            at, _, quality = fall.partition(":")
            if int(at) == version + 1:
                self._quality = float(quality or 0.0)
        metrics = await super().step(groups, version=version, timeout_s=timeout_s)
        tiny = {"kl_step": 1e-8} if ":" in os.environ["AREAL_TEST_FALLS"] else {}
        return {**metrics, **tiny, "quality": self._quality}

    async def publish(self, version: int) -> areal_sdk.WeightUpdate:
        _published().write_text(str(self._quality))
        return await super().publish(version)

    async def save(self, directory: Path, extra: Mapping[str, Any]) -> None:
        await super().save(directory, {**extra, "quality": self._quality})

    async def load(self, directory: Path) -> Mapping[str, Any]:
        await self._held("hold-load", "in-load")
        extra = dict(await super().load(directory))
        self._quality = extra.pop("quality")
        return extra


def _published() -> Path:
    return Path(os.environ["AREAL_TEST_QUALITY"])


@areal_sdk.hookimpl
def register_trainers(register: Callable[[str, object], None]) -> None:
    register("falling", Faller)
