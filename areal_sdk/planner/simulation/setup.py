"""The parts of a simulated run."""

from dataclasses import dataclass, replace
from typing import Any

from areal_sdk.planner.simulation.books import BookRules
from areal_sdk.planner.simulation.losses import LossRates
from areal_sdk.planner.speeds import EngineSpeed, Machine, TrainerSpeed
from areal_sdk.planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a simulated run depends on, but its seed."""

    rules: BookRules
    workload: Workload
    engine: EngineSpeed
    trainer: TrainerSpeed
    num_engines: int = 1
    machine: Machine | None = None
    """The machine whose cores all parts share; None if they share none."""
    is_colocated: bool = False
    """Engines and trainer share their devices: while a step is trained nothing is sampled."""
    losses: LossRates | None = None
    drains: bool = False
    """Running requests end before new weights are served; meanwhile none begins."""

    def with_rules(self, **changed: Any) -> "Setup":
        return replace(self, rules=replace(self.rules, **changed))

    def with_gate(self, **changed: Any) -> "Setup":
        return self.with_rules(gate=replace(self.rules.gate, **changed))
