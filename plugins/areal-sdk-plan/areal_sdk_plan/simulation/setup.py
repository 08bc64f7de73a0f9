"""The parts of a simulated run."""

from dataclasses import dataclass, replace
from typing import Any

from areal_sdk.flow import FlowRules
from areal_sdk_plan.simulation.losses import LossRates
from areal_sdk_plan.speeds import EngineSpeed, Machine, TrainerSpeed
from areal_sdk_plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a simulated run depends on, but its seed."""

    rules: FlowRules
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

    def with_rollout(self, **changed: Any) -> "Setup":
        """The same run with other settings in `[rollout]`."""
        return replace(self, rules=FlowRules(self.rules.rollout.model_copy(update=changed)))
