"""Do groups whose rewards are equal have to give way? What helps a policy to find what it never does?

    python benchmarks/idle_groups.py [--tasks guess_number reverse] [--arms default refilled] [--seeds 1 2]
        [--save FILE] [--table] [--write]

The model, the tasks and the weak demonstrations are those of `benchmarks/gauntlet.py one-process`. A run takes 120
steps of 4 groups of 8 episodes at default settings, so the learning rate is "auto". An arm changes one thing:

default     nothing
refilled    groups of equal rewards are replaced by further ones, until a step has played 3 times as many
            (`rollout.dynamic_sampling` gives up after 4 times)
batch       a group of equal rewards is compared with the batch: its advantage is the distance of its reward from
            the mean, in standard deviations
8x4, 8x8    8 groups of 4, and of 8, in place of 4 groups of 8
hot         sampled at temperature 1.2
entropy     an entropy bonus, `algorithm.grpo.entropy = 0.01`

Learning is compared in episodes, idle ones included: `episodes` counts those played until the success of 10 steps, on
training tasks, has made 80 % of the gain of the default arm of that seed; `CPU-s` are those of playing and training
until then. `final` is the mean success of the evaluations of the last 12 steps, and `mean` that over seeds. Of
guess_number, `secrets` counts those of its seven that succeed in more than 0.8 of 50 games at the end. `differ` is the
share of the groups whose rewards differ.
"""

import argparse
import asyncio
import itertools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import guessing
import numpy as np
import torch
from gauntlet_one_process import GUESS_NUMBER, NUM_GAMES, demonstrated
from one_process import Arm, Curve, Played, Player, quiet, save_model, train, trajectory
from seeds import Runs
from tables import table, write_section
from torch import Tensor
from wordplay import WordGame

from areal_sdk import Task
from areal_sdk.algorithms import Algorithm
from areal_sdk.algorithms.advantages import Estimate, Evidence, GroupRelative
from areal_sdk.algorithms.advantages.returns import spread
from areal_sdk.algorithms.presets import grpo
from areal_sdk.trajectory import TrajectoryGroup

TASKS = (GUESS_NUMBER, "sort_digits", "tool_choice", "reverse", "second_try", "noisy")
STEPS, ETA, WIDTH = 120, 1, 10
NUM_SEEDS_OF_OTHERS = 2
"""The seeds of the tasks beside guess_number, which only the arms about groups play."""
MEASURED = (0, STEPS // 2, STEPS - 12, STEPS - 6, STEPS)


@dataclass(frozen=True, slots=True)
class AgainstBatch:
    """GRPO, where a group of equal rewards is compared with the batch."""

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        found = GroupRelative(discount=1.0)(groups, evidence)
        rewards = np.array([row.reward for group in groups for row in group.trajectories])
        if not (std := float(rewards.std())):
            return found
        usual = float(rewards.mean())
        advantages = [
            of_group
            if differs(group)
            else [spread(row, (row.reward - usual) / std) for row in group.trajectories]
            for group, of_group in zip(groups, found.advantages, strict=True)
        ]
        return replace(found, advantages=advantages)


def against_batch() -> Algorithm:
    return replace(grpo(), advantages=AgainstBatch())


def differs(group: TrajectoryGroup) -> bool:
    return len({row.reward for row in group.trajectories}) > 1


@dataclass(frozen=True)
class Change:
    """One arm of the comparison."""

    preset: str = "grpo"
    options: dict[str, Any] = field(default_factory=dict)
    groups: int = 4
    siblings: int = 8
    rounds: int = 1
    """A step plays at most so many times its groups."""
    temperature: float = 1.0


CHANGES = {
    "default": Change(),
    "refilled": Change(rounds=3),
    "batch": Change("idle_groups:against_batch"),
    "8x4": Change(groups=8, siblings=4),
    "8x8": Change(groups=8),
    "8x8 batch": Change("idle_groups:against_batch", groups=8),
    "hot": Change(temperature=1.2),
    "entropy": Change(options={"entropy": 0.01}),
}
OF_GROUPS = ("default", "refilled", "batch")


class HotPlayer(Player):
    """A player who samples at a temperature while it trains."""

    temperature = 1.0

    @torch.no_grad()
    def sample(self, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
        logits_BV = self.model(tokens_BL, use_cache=False, logits_to_keep=1).logits[:, -1]
        logprobs_BV = torch.log_softmax(logits_BV / self.temperature, -1)
        chosen_B1 = torch.multinomial(logprobs_BV.exp(), 1, generator=self.generator)
        return chosen_B1[:, 0], logprobs_BV.gather(1, chosen_B1)[:, 0]


class Game:
    """A task: `play` plays groups of siblings, `evaluate` measures a player."""

    def __init__(self, name: str, *, seed: int, siblings: int) -> None:
        self.by_secret: list[float] = []
        self._siblings = siblings
        self._num_played = 0
        self._is_guessing = name == GUESS_NUMBER
        if self._is_guessing:
            self._known = list(guessing.example.tasks("train"))
            self._order: list[Task] = []
            self._generator = random.Random(seed)
            self.vocabulary = guessing.VOCABULARY
            return
        self._words = WordGame(name)
        self._known = self._words.tasks("train")
        self._held_out = itertools.cycle(self._words.tasks("eval"))
        self._judged = [next(self._held_out) for _ in range(NUM_GAMES)]
        self._generator = random.Random(f"{seed}-draw")
        self.vocabulary = self._words.vocabulary

    def play(self, player: HotPlayer, num: int) -> tuple[list[TrajectoryGroup], float]:
        """Play `num` groups; returns them and the success of their episodes."""
        tasks = self._drawn(num)
        played = self._played(player, [task for task in tasks for _ in range(self._siblings)])
        self._num_played += 1
        groups = []
        for number, task in enumerate(tasks):
            name = f"{self._num_played}-{number}"
            theirs = played[number * self._siblings : (number + 1) * self._siblings]
            rows = [
                trajectory(f"{name}-{sibling}", task.id, row, version=player.version, reward=reward)
                for sibling, (row, reward, _) in enumerate(theirs)
            ]
            heat = player.temperature
            hot = [
                replace(row, temperatures=np.full(len(row.tokens), heat, np.float32))
                for row in rows
            ]
            groups.append(TrajectoryGroup(name, task.id, tuple(hot)))
        return groups, mean(success for *_, success in played)

    def evaluate(self, player: Player) -> float:
        if not self._is_guessing:
            return mean(success for *_, success in self._played(player, self._judged))
        num = guessing.NUM_JUDGED
        tasks = [task for task in guessing.example.tasks("eval") for _ in range(num)]
        successes = [success for *_, success in self._played(player, tasks)]
        self.by_secret = [mean(successes[i : i + num]) for i in range(0, len(tasks), num)]
        return mean(successes)

    def _drawn(self, num: int) -> list[Task]:
        """Tasks of a word game by chance; those of guess_number in epochs."""
        if not self._is_guessing:
            return self._generator.choices(self._known, k=num)
        while len(self._order) < num:
            shuffled = self._generator.sample(self._known, len(self._known))
            self._order = [*shuffled, *self._order]
        return [self._order.pop() for _ in range(num)]

    def _played(self, player: Player, tasks: Sequence[Task]) -> list[tuple[Played, float, float]]:
        if self._is_guessing:
            games = asyncio.run(guessing.play_games(player, tasks))
            return [(row, reward, reward) for row, reward in games]
        return [(g.played, g.reward, float(g.success)) for g in self._words.play(player, tasks)]


def measure(name: str, change: Change, *, seed: int) -> Curve:
    game = Game(name, seed=seed, siblings=change.siblings)
    seen: dict[str, float] = {}

    def play(player: Player, step: int) -> Sequence[TrajectoryGroup]:
        assert isinstance(player, HotPlayer)
        player.temperature = change.temperature
        groups, success = game.play(player, change.groups)
        differing, count = mean(map(differs, groups)), change.groups
        while True:
            idle = [group for group in groups if not differs(group)]
            num = min(len(idle), change.rounds * change.groups - count)
            if not num:
                break
            more, _ = game.play(player, num)
            count += num
            useful = [group for group in (*groups, *more) if differs(group)]
            groups = [*useful, *idle][: change.groups]
        seen.update(episodes=count * change.siblings, success=success, differ=differing)
        return groups

    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=game.vocabulary, layers=2, seed=seed)
        player = HotPlayer(model, seed=seed)
        player.load(demonstrated(name, seed), 0)
        player.model.save_pretrained(model)
        arm = Arm(change.preset, change.preset, change.options)
        curve = train(
            arm.trainer(model, learning_rate="auto", warmup_steps=5),
            player,
            play,
            game.evaluate,
            steps=STEPS,
            eta=ETA,
            evaluated=MEASURED.__contains__,
            observe=lambda taken: dict(seen),
        )
    curve.per_step["by_secret"] = game.by_secret
    return curve


def steps_to(curve: Curve, success: float) -> int | None:
    """Steps until the success of `WIDTH` of them is as high."""
    successes = curve.per_step["success"]
    ends = range(WIDTH, STEPS + 1)
    return next((end for end in ends if mean(successes[end - WIDTH : end]) >= success), None)


def goal_of(default: Curve) -> float:
    successes = default.per_step["success"]
    start, end = mean(successes[: WIDTH // 2]), mean(successes[-WIDTH:])
    return start + 0.8 * (end - start)


SECTION = """\
## Groups of equal rewards, and exploration

`python benchmarks/idle_groups.py --save FILE --write`: small tasks in one process, 120 steps at default settings, one
change an arm. The docstring of the program describes arms and columns; numbers in a row are seeds."""
HEADER = (
    *("task", "arm", "start", "final", "mean", "secrets"),
    *("differ", "episodes", "CPU-s", "played in all"),
)


def table_of(runs: Runs, tasks: Sequence[str], arms: Sequence[str], seeds: Sequence[int]) -> str:
    rows = []
    for task, arm in itertools.product(tasks, arms):
        known = [
            seed for seed in seeds if (task, arm, seed) in runs and (task, "default", seed) in runs
        ]
        if known:
            goals = [goal_of(runs[task, "default", seed]) for seed in known]
            rows.append((f"`{task}`", arm, *cells_of([runs[task, arm, s] for s in known], goals)))
    return table(HEADER, rows)


def cells_of(curves: Sequence[Curve], goals: Sequence[float]) -> tuple[str, ...]:
    finals = [curve.final(STEPS - 12) for curve in curves]
    by_secret = [curve.per_step["by_secret"] for curve in curves]
    arrivals = [steps_to(curve, goal) for curve, goal in zip(curves, goals, strict=True)]
    episodes, cpu_s = [], []
    for curve, step in zip(curves, arrivals, strict=True):
        played = sum(curve.per_step["episodes"][:step])
        episodes.append("never" if step is None else f"{played:,}")
        cpu_s.append(
            "never" if step is None else f"{np.interp(step, curve.steps, curve.cpu_s):.1f}"
        )
    return (
        f"{mean(curve.scores[0] for curve in curves):.2f}",
        " ".join(f"{final:.2f}" for final in finals),
        f"{mean(finals):.2f}",
        " ".join(str(sum(share > 0.8 for share in one)) for one in by_secret if one),
        f"{mean(mean(curve.per_step['differ']) for curve in curves):.0%}",
        " ".join(episodes),
        " ".join(cpu_s),
        f"{mean(sum(curve.per_step['episodes']) for curve in curves):,.0f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--arms", nargs="+", choices=[*CHANGES], default=[*CHANGES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    parser.add_argument("--table", action="store_true", help="only show the runs in the file")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    quiet()
    runs = Runs(options.save)
    for seed, task, arm in itertools.product(options.seeds, options.tasks, options.arms):
        if (task, arm, seed) in runs or options.table:
            continue
        if task != GUESS_NUMBER and (arm not in OF_GROUPS or seed > NUM_SEEDS_OF_OTHERS):
            continue
        runs[task, arm, seed] = measure(task, CHANGES[arm], seed=seed)
        final = runs[task, arm, seed].final(STEPS - 12)
        print(f"{task} {arm} seed {seed}: {final:.2f}", flush=True)
    told = table_of(runs, options.tasks, options.arms, options.seeds)
    print(told)
    if options.write:
        write_section("idle-groups", f"{SECTION}\n\n{told}")


if __name__ == "__main__":
    main()
