"""Whole runs of dispatcher and buffer on a virtual clock, written down for who forecasts runs.

    python -m tests.rollout.recorded_flows     # writes RECORD anew

A record has the episodes of each group as they would be played, and the groups that each step trained, with the time
when the step ended. `areal-sdk plan` plays the same episodes and has to train the same groups at the same times.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_sdk.flow import FlowRules, RolloutSection
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.tasks import EpisodeRequest, TaskSource
from areal_sdk.telemetry.ledger import Ledger
from areal_sdk.types import Episode, ErrorKind, Outcome
from tests.rollout.simulation import simulate, tasks, turn

RECORD = Path(__file__).parents[2] / "plugins/areal-sdk-plan/tests/recorded_flows.json"

STEPS = 24
TRAIN_S = 1.0
SWAP_S = 0.01
GROUP_SIZE = 4
NUM_GROUPS = 160
"""Groups of a script: more than any run begins."""

GATES = [(0, 8, 8), (1, 8, 16), (1, 8, 12), (2, 12, 100), (4, 8, 20)]
"""Staleness, episodes a step, episodes in flight."""
FAILING = [("train", 0.0), ("train", 0.1), ("drop", 0.1)]
"""What becomes of incomplete groups, and the share of episodes that fail."""

Script = Sequence[Sequence[float]]
"""Seconds of each sibling of each group, by the order of admission; negative if the sibling fails."""


def script(seed: int, failing: float) -> Script:
    """Episodes of a second on average, and some of more than twenty."""
    return [
        [_seconds(f"{seed} {n} {sibling}", failing) for sibling in range(GROUP_SIZE)]
        for n in range(NUM_GROUPS)
    ]


def _seconds(seed: str, failing: float) -> float:
    generator = random.Random(seed)
    lasts_s = generator.expovariate(1.0) + (20.0 if generator.random() < 0.05 else 0.0)
    return round(lasts_s if generator.random() >= failing else -lasts_s, 5)


def cases() -> list[dict[str, Any]]:
    """The settings of each run, with the name of its script."""
    return [
        {
            "script": f"{eta} {failing}",
            "rollout": {
                "batch": batch,
                "group_size": GROUP_SIZE,
                "max_staleness": eta,
                "max_inflight": inflight,
                "stale": stale,
                "wait_s": 2.0,
                "incomplete_groups": incomplete,
            },
        }
        for stale, (eta, batch, inflight), (incomplete, failing) in itertools.product(
            ("wait", "drop", "mask"), GATES, FAILING
        )
    ]


@dataclass
class Runner:
    """Plays the episodes of a script for the real dispatcher."""

    script: Script
    positions: Mapping[str, int]
    buffer: TrajectoryBuffer
    serving: asyncio.Event
    """Cleared while new weights come in."""
    first: dict[str, int] = field(default_factory=dict)

    def oldest_version(self, episode_id: str) -> int | None:
        return self.first.get(episode_id)

    async def run(self, request: EpisodeRequest) -> Episode:
        lasts_s = self.script[self.positions[request.task.id]][request.sibling]
        try:
            await self.serving.wait()
            version = self.first[request.id] = self.buffer.version
            await asyncio.sleep(abs(lasts_s))
        finally:
            self.first.pop(request.id, None)
        outcome = (
            Outcome.scored(1.0) if lasts_s > 0 else Outcome.failed(ErrorKind.AGENT, "scripted")
        )
        return Episode(
            request.id,
            request.task,
            turns=(turn(version),),
            outcome=outcome,
            group=request.group,
            sibling=request.sibling,
            epoch=request.epoch,
            duration_s=abs(lasts_s),
        )


def played(script: Script, rollout: Mapping[str, Any]) -> tuple[list[list[int]], list[float]]:
    """The groups that each step of a run trained, by their order, and the time when the step ended."""
    return simulate(_play(script, FlowRules(RolloutSection.model_validate(rollout))))


async def _play(script: Script, rules: FlowRules) -> tuple[list[list[int]], list[float]]:
    given = tasks(NUM_GROUPS)
    source = TaskSource(given, shuffle=False)
    positions = {task.id: index for index, task in enumerate(given)}
    held = TrajectoryBuffer(rules, tasks=source, ledger=Ledger(), max_lost_in_a_row=10**6)
    serving = asyncio.Event()
    serving.set()
    runner = Runner(script, positions, held, serving)
    trained: list[list[int]] = []
    ended: list[float] = []
    async with (
        Dispatcher(held, runner=runner, tasks=source) as dispatcher,
        asyncio.TaskGroup() as own,
    ):

        async def deliver(version: int) -> None:
            await asyncio.sleep(SWAP_S)
            dispatcher.set_version(version)
            serving.set()

        for version in range(STEPS):
            batch = await held.cut_batch(version=version)
            await asyncio.sleep(TRAIN_S)
            held.mark_trained(batch)
            trained.append([positions[group.issued.task.id] for group in batch.finished])
            ended.append(asyncio.get_running_loop().time())
            serving.clear()
            own.create_task(deliver(version + 1))
    return trained, ended


def record() -> dict[str, Any]:
    """Everything that RECORD holds."""
    scripts = {
        f"{eta} {failing}": script(eta, failing) for eta, *_ in GATES for _, failing in FAILING
    }
    runs = []
    for case in cases():
        trained, ended = played(scripts[case["script"]], case["rollout"])
        ended_at = [round(time, 5) for time in ended]
        runs.append({**case, "trained": trained, "ended_at": ended_at})
    times = {"steps": STEPS, "train_s": TRAIN_S, "swap_s": SWAP_S}
    return {"times": times, "scripts": scripts, "runs": runs}


if __name__ == "__main__":
    rows = json.dumps(record(), separators=(",", ":")).replace('},{"script"', '},\n{"script"')
    RECORD.write_text(rows + "\n", encoding="utf-8")
