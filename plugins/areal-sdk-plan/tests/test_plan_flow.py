"""The simulation trains the groups that a real run trained, at the same times.

`recorded_flows.json` is what dispatcher and buffer of areal-sdk did with the same episodes, on a virtual clock;
`python -m tests.rollout.recorded_flows` in a checkout of areal-sdk writes the record, and a test there plays it again.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.flow import FlowRules, RolloutSection
from areal_sdk_plan.simulation.run import simulated_steps
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import DecodeCurve, EngineSpeed, TrainerSpeed
from areal_sdk_plan.workload import EpisodeShape, TurnShape, Workload

RECORD = json.loads((Path(__file__).parent / "recorded_flows.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Scripted(Workload):
    """The episodes of the groups, in the order of admission."""

    script: Sequence[Sequence[float]] = ()
    issued: list[int] = field(default_factory=list)

    def draw(self, generator: random.Random, size: int) -> Sequence[EpisodeShape]:
        group = self.script[len(self.issued)]
        self.issued.append(size)
        turns = (TurnShape(3, 3, 1),)
        return [EpisodeShape(turns, after_s=abs(s), is_valid=s > 0) for s in group]


@pytest.mark.parametrize("number", range(len(RECORD["runs"])))
def test_the_same_groups_are_trained_at_the_same_times(number: int) -> None:
    run: dict[str, Any] = RECORD["runs"][number]
    times = RECORD["times"]
    setup = Setup(
        FlowRules(RolloutSection.model_validate(run["rollout"])),
        Scripted(((EpisodeShape(()),),), script=RECORD["scripts"][run["script"]]),
        EngineSpeed(DecodeCurve(((1, 1e-9),)), swap_s=times["swap_s"]),
        TrainerSpeed(token_s=0.0, fixed_s=times["train_s"]),
    )
    steps = simulated_steps(setup, steps=times["steps"])
    assert [list(step.groups) for step in steps] == run["trained"]
    assert [step.ended_at for step in steps] == pytest.approx(run["ended_at"], abs=1e-4)
