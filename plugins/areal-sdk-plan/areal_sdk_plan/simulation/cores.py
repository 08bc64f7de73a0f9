"""One machine for all parts: who computes shares its cores."""

import math
from typing import TYPE_CHECKING, Self

from areal_sdk_plan.speeds import Machine

if TYPE_CHECKING:
    from areal_sdk_plan.simulation.setup import Setup

WINDOW_S = 1.0
"""Seconds over which the load of the main process is averaged."""


class SharedCores:
    """Servers, ranks and the main process get equal parts of the cores, at most one core a thread."""

    __slots__ = (
        "_engine_cores",
        "_free_at",
        "_load",
        "_looked_at",
        "_machine",
        "_trainer_cores",
        "current",
        "trainer_pace",
    )

    def __init__(self, machine: Machine, *, engine_cores: float, trainer_cores: float) -> None:
        self._machine = machine
        self._engine_cores = engine_cores
        self._trainer_cores = trainer_cores
        self.current = 1.0
        """The pace of everybody who computes: 1 while there are enough cores."""
        self.trainer_pace = 1.0
        self._free_at = 0.0
        self._load = 0.0
        self._looked_at = 0.0

    @classmethod
    def of(cls, setup: "Setup") -> Self | None:
        if setup.machine is None:
            return None
        trainer = setup.trainer
        return cls(
            setup.machine,
            engine_cores=setup.engine.cores,
            trainer_cores=trainer.cores * trainer.ranks,
        )

    def main_wait_s(self, now: float) -> float:
        """Seconds until the main process, which is one thread, has done its part of one more call."""
        cost_s = self._machine.request_cpu_s
        self._decay(now)
        self._load += cost_s / WINDOW_S
        self._free_at = max(now, self._free_at) + cost_s / self.current
        return self._free_at - now

    def pace(self, now: float, *, num_engines: int, is_training: bool) -> float:
        """The part of a core that each computing thread gets."""
        self._decay(now)
        demand = num_engines * self._engine_cores + is_training * self._trainer_cores
        demand += self._machine.others + round(min(1.0, self._load), 1)
        return 1.0 if demand <= self._machine.cores else self._machine.cores / demand

    def _decay(self, now: float) -> None:
        self._load *= math.exp(-(now - self._looked_at) / WINDOW_S)
        self._looked_at = now
