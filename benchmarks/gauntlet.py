"""The gauntlet: small tasks that nobody tuned for. Does a run learn, and does what was learnt stay?

    python benchmarks/gauntlet.py one-process [--tasks sort_digits grid] [--presets grpo rloo]
        [--rates 2e-5 1e-3 5e-3] [--seeds 1 2 3] [--steps 120] [--eta 1] [--set trust_region=0.003]
        [--option entropy=0.01] [--save FILE] [--table]

    python benchmarks/gauntlet.py command --keep DIR [--tasks sort_digits json_format] [--seeds 0 1]
        [--set trainer.learning_rate=1e-3] [--python ../before/.venv/bin/python]

The tasks are the agent files in benchmarks/gauntlet/, and examples/agents/guess_number.py. Each has
demonstrations of a weak player, which teach the format before reinforcement learning begins.

one-process  A small model (2 layers, 20,000 parameters, random) plays and learns in one process, with
             one token for a word (benchmarks/wordplay.py). Losses, advantages and optimiser are the
             package's own, with its default settings: 4 groups of 8 episodes a step, one minibatch.
             `--set` passes other settings of `[trainer]`, `--option` options of the preset. Samples are
             `--eta` versions old. Finished runs in the file `--save` are not repeated.
command      `areal-sdk train FILE --model tiny` (random, 0.36 M parameters, bytes) or `--model smollm2`, with
             default settings but for the number of steps, the supervised steps of `tiny` and the
             evaluations: 10 during the run, of 100 games or a few more. A run that has ended in the
             directory `--keep` is not repeated. `--python` runs another checkout.

Held-out tasks are never trained, except where a task has fewer than 50: these files say so. All games of evaluations are
sampled at temperature 1. In one process a run is evaluated 20 times in 200 games, and before training in 600. The success of an
evaluation is the true one, also where the reward is noisy.

The rules were written before any run (benchmarks/verdicts.py). `start` is the success before training,
`final` the mean of the last three evaluations, `best` the highest mean of three neighbouring ones. The
kept share is (final - start) / (best - start). One success is more than another if the difference is at least
0.1 and three binomial standard errors.

collapsed          final is less than start, or has learnt and final is less than a quarter of best
learnt then fell   best is more than start, and more than a fifth of the gain (and three standard
                   errors) is lost
learnt and stayed  best is more than start, and no such loss; or a start of 0.95 that does not collapse
no signal          none of these, and the rewards of fewer than 5 % of the groups of the first quarter
                   of the steps differed
stalled            none of these, though groups differed

`largest KL` is the largest over steps of the mean KL, in nats a sampled token, of the policy before the
step from the policy after it: in one process exact, over the whole vocabulary, on the step's own samples;
of the command what the trainer reports.
"""

import argparse
import functools
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import gauntlet_command
import guessing
import torch
import verdicts
from one_process import Arm, Curve, Evaluate, Observe, Play, Player, Taken, quiet, save_model, train
from seeds import Key, Runs
from tables import table
from verdicts import Judged, Verdict, judge
from wordplay import WordGame, groups_of

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trajectory import TrajectoryGroup

GUESS_NUMBER = "guess_number"
WORD_TASKS = (
    "sort_digits",
    "grid",
    "tool_choice",
    "two_tools",
    "reverse",
    "second_try",
    "noisy",
    "twenty_turns",
    "garden",
    "nim",
    "mod7",
)
TASKS = (GUESS_NUMBER, *WORD_TASKS)
NUM_GROUPS, NUM_SIBLINGS = 4, 8
"""`rollout.batch` and `rollout.group_size` are 32 and 8 by default."""
NUM_GAMES, NUM_EVALUATIONS = 200, 20
NUM_FIRST = verdicts.WINDOW * NUM_GAMES
"""Games of the evaluation before training."""
WITH_CRITIC = ("ppo",)
JSON = Any


@dataclass(frozen=True)
class Case:
    """One run. The order of the fields is the order in which runs are made."""

    task: str
    seed: int
    preset: str
    rate: float | str
    """A learning rate, or "auto"."""
    steps: int
    eta: int
    groups: int
    """Groups of a step."""

    def key(self, more: Sequence[str]) -> Key:
        return (*astuple(self), *more)

    def __str__(self) -> str:
        return f"{self.task} {self.preset} {self.rate} seed {self.seed}"


def opened(
    name: str, *, seed: int, num_groups: int
) -> tuple[int, Callable[[RankTrainer], None], Play, Evaluate]:
    """The vocabulary of a task, its demonstrations, the groups of a step, and an evaluation."""
    if name == GUESS_NUMBER:
        return guessing.VOCABULARY, guessing.demonstrate, guessing.play, guessing.evaluate
    game = WordGame(name)
    known, held_out = game.tasks("train"), itertools.cycle(game.tasks("eval"))
    judged = [next(held_out) for _ in range(NUM_GAMES)]

    def play(player: Player, step: int) -> Sequence[TrajectoryGroup]:
        chosen = random.Random(f"{seed}-{step}").choices(known, k=num_groups)
        games = game.play(player, [task for task in chosen for _ in range(NUM_SIBLINGS)])
        return groups_of(games, chosen, version=player.version, step=step)

    def evaluate(player: Player) -> float:
        rounds = NUM_FIRST // NUM_GAMES if player.version == 0 else 1
        return mean(found.success for found in game.play(player, judged * rounds))

    return game.vocabulary, game.demonstrate, play, evaluate


def num_games(name: str) -> tuple[int, int]:
    """The games of an evaluation, and of the one before training."""
    if name == GUESS_NUMBER:
        num = guessing.NUM_JUDGED * len(list(guessing.example.tasks("eval")))
        return num, num
    return NUM_GAMES, NUM_FIRST


@functools.lru_cache(maxsize=1)
def demonstrated(name: str, seed: int) -> dict[str, torch.Tensor]:
    """The weights after the demonstrations, which all presets and rates of a seed begin with."""
    vocabulary, demonstrate, *_ = opened(name, seed=seed, num_groups=NUM_GROUPS)
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=vocabulary, layers=2, seed=seed)
        trainer = Arm("grpo", "grpo").trainer(model, learning_rate=1e-3)
        demonstrate(trainer)
        return {name: part.clone() for name, part in trainer.policy.model.state_dict().items()}


def measure(case: Case, *, settings: Mapping[str, JSON], options: Mapping[str, JSON]) -> Curve:
    """One run. The warm-up is the package's default; the other programs have none."""
    settings = {"warmup_steps": 5, **settings}
    if case.preset in WITH_CRITIC and not isinstance(case.rate, str):
        options = {"critic_learning_rate": case.rate, **options}
    vocabulary, _, play, evaluate = opened(case.task, seed=case.seed, num_groups=case.groups)
    every = max(1, case.steps // NUM_EVALUATIONS)
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocabulary=vocabulary, layers=2, seed=case.seed)
        player, witness = Player(model, seed=case.seed), Player(model, seed=0)
        player.load(demonstrated(case.task, case.seed), 0)
        player.model.save_pretrained(model)
        arm = Arm(case.preset, case.preset, dict(options))
        return train(
            arm.trainer(model, learning_rate=case.rate, **settings),
            player,
            play,
            evaluate,
            steps=case.steps,
            eta=case.eta,
            evaluated=lambda step: step % every == 0,
            observe=observer(witness),
        )


def observer(witness: Player) -> Observe:
    """What is remembered of every step; `witness` only computes."""

    def logprobs(taken: Taken, *, after: bool) -> torch.Tensor:
        witness.load(taken.after if after else taken.before, 0)
        with torch.no_grad():
            logits_BLV = witness.model(tokens_of(taken.groups), use_cache=False).logits
        return torch.log_softmax(logits_BLV[:, :-1], -1)

    def observe(taken: Taken) -> dict[str, float]:
        before_BLV, after_BLV = logprobs(taken, after=False), logprobs(taken, after=True)
        kl_BL = (before_BLV.exp() * (before_BLV - after_BLV)).sum(-1)
        rewards = [{row.reward for row in group.trajectories} for group in taken.groups]
        seen = {
            "kl": kl_BL[sampled(taken.groups)[:, 1:]].mean().item(),
            "differ": mean(len(found) > 1 for found in rewards),
            "reward": mean(row.reward for group in taken.groups for row in group.trajectories),
        }
        own = ("entropy", "kl_step", "learning_rate", "grad_norm", "kl_behaviour")
        seen |= {f"train/{name}": taken.metrics.get(name, 0.0) for name in own}
        return {key: round(value, 7) for key, value in seen.items()}

    return observe


def tokens_of(groups: Sequence[TrajectoryGroup]) -> torch.Tensor:
    return padded([torch.tensor(row.tokens) for group in groups for row in group.trajectories])


def sampled(groups: Sequence[TrajectoryGroup]) -> torch.Tensor:
    return padded([torch.tensor(row.loss_mask) for group in groups for row in group.trajectories])


def padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """What comes after a row changes nothing before it: attention is causal."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def judged(name: str, curve: Curve) -> Judged:
    differ = curve.per_step["differ"]
    each, first = num_games(name)
    early = differ[: max(1, len(differ) // 4)]
    return judge(curve.scores, num_games=each, num_first=first, signal=mean(early))


def line_of(case: Case, curve: Curve) -> str:
    found = judged(case.task, curve)
    return (
        f"{case}: start {found.start:.2f} best {found.best:.2f} final {found.final:.2f} kept {found.kept} "
        f"largest KL {max(curve.per_step['kl']):.2g} {found.verdict} ({curve.cpu_s[-1]:.0f} CPU-s)"
    )


HEADER = ("task", "preset", "rate", "start", "best", "final", "kept", "largest KL", "classes")


def rows_of(curves: Mapping[Case, Curve]) -> list[tuple[str, ...]]:
    """One row for the seeds of a task, preset and rate."""
    by_series: dict[tuple[str, str, float | str], list[Curve]] = {}
    for case, curve in curves.items():
        by_series.setdefault((case.task, case.preset, case.rate), []).append(curve)
    rows = []
    for (name, preset, rate), of_seeds in by_series.items():
        found = [judged(name, curve) for curve in of_seeds]
        classes = Counter(one.verdict for one in found)
        rows.append(
            (
                f"`{name}`",
                f"`{preset}`",
                f"{rate}",
                " ".join(f"{one.start:.2f}" for one in found),
                " ".join(f"{one.best:.2f}" for one in found),
                " ".join(f"{one.final:.2f}" for one in found),
                " ".join(one.kept for one in found),
                " ".join(f"{max(curve.per_step['kl']):.2g}" for curve in of_seeds),
                ", ".join(f"{num} {kind}" for kind, num in classes.items()),
            )
        )
    return rows


def summary(curves: Mapping[Case, Curve]) -> str:
    """Runs by class, for each preset and rate."""
    counts: dict[tuple[str, str], Counter[Verdict]] = {}
    for case, curve in curves.items():
        of_series = counts.setdefault((case.preset, f"{case.rate}"), Counter())
        of_series[judged(case.task, curve).verdict] += 1
    rows = [(*of, *(found[kind] for kind in Verdict)) for of, found in counts.items()]
    return table(("preset", "rate", *Verdict), rows)


def assignments(given: Sequence[str]) -> dict[str, JSON]:
    """
    >>> assignments(["trust_region=0.003", "schedule=linear"])
    {'trust_region': 0.003, 'schedule': 'linear'}
    """
    found: dict[str, JSON] = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def one_process(options: argparse.Namespace) -> None:
    quiet()
    runs = Runs(options.save)
    settings, of_preset = assignments(options.set), assignments(options.option)
    curves: dict[Case, Curve] = {}
    orders = (options.tasks, options.seeds, options.presets, options.rates)
    for name, seed, preset, rate in itertools.product(*orders):
        rate = rate if rate == "auto" else float(rate)
        case = Case(name, seed, preset, rate, options.steps, options.eta, options.groups)
        key = case.key([*options.set, *options.option])
        if key not in runs and not options.table:
            runs[key] = measure(case, settings=settings, options=of_preset)
            print(line_of(case, runs[key]), flush=True)
        if key in runs:
            curves[case] = runs[key]
    print(table(HEADER, rows_of(curves)))
    print(summary(curves))


def command(options: argparse.Namespace) -> None:
    directory = options.keep.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[gauntlet_command.Ended]] = {}
    for name, seed in itertools.product(options.tasks, options.seeds):
        task = gauntlet_command.BY_NAME[name]
        ended = gauntlet_command.measure(
            task, seed=seed, directory=directory, python=options.python, more=options.set
        )
        print(ended, flush=True)
        found.setdefault(name, []).append(ended)
    rows = [
        gauntlet_command.row_of(gauntlet_command.BY_NAME[name], of) for name, of in found.items()
    ]
    print(table(gauntlet_command.HEADER, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("command", help="the real command")
    known = [*gauntlet_command.BY_NAME]
    part.add_argument("--tasks", nargs="+", choices=known, default=known)
    part.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    part.add_argument("--set", nargs="+", default=[], metavar="SECTION.KEY=VALUE")
    part.add_argument("--python", default=sys.executable, help="of the checkout that is measured")
    part.add_argument("--keep", type=Path, required=True, help="a directory for the runs")
    part.set_defaults(run=command)
    part = parts.add_parser("one-process", help="a small model in one process")
    part.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    part.add_argument("--presets", nargs="+", choices=[*ALGORITHMS], default=["grpo"])
    part.add_argument("--rates", nargs="+", default=["2e-5", "1e-3", "5e-3"], help='or "auto"')
    part.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    part.add_argument("--steps", type=int, default=120)
    part.add_argument("--eta", type=int, default=1, help="versions between a sample and its step")
    part.add_argument("--groups", type=int, default=NUM_GROUPS, help="of 8 episodes a step")
    part.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of [trainer]")
    part.add_argument("--option", nargs="+", default=[], metavar="NAME=VALUE", help="of the preset")
    part.add_argument("--save", type=Path, help="a file of finished runs, which are not repeated")
    part.add_argument("--table", action="store_true", help="only show the runs in the file")
    part.set_defaults(run=one_process)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
