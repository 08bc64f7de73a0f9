"""The part of benchmarks/gauntlet.py in one process: cases, runs, what is remembered of them, and their table."""

import functools
import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

import guessing
import torch
import verdicts
from one_process import Arm, Curve, Evaluate, Observe, Play, Player, Taken, save_model, train
from seeds import Key
from tables import DOCUMENT, table
from verdicts import Judged, Verdict, judge
from wordplay import WordGame, groups_of

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
OUTCOMES = DOCUMENT.parent / "images" / "gauntlet.json"
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
    """The observer that remembers figures of every step; `witness` only computes."""

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
    """The rows, padded at their ends. Padding changes nothing before it: attention is causal."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


@dataclass(frozen=True)
class Outcome:
    """The figures that are kept of a run. Its fields are JSON."""

    scores: list[float]
    signal: float
    """The share of groups whose rewards differed, in the first quarter of the steps."""
    largest_kl: float
    cpu_s: float


Found = dict[Case, Outcome]


def outcome(curve: Curve) -> Outcome:
    differ = curve.per_step["differ"]
    early = differ[: max(1, len(differ) // 4)]
    return Outcome(
        [round(score, 4) for score in curve.scores],
        round(mean(early), 4),
        float(f"{max(curve.per_step['kl']):.2g}"),
        round(curve.cpu_s[-1], 1),
    )


def judged(case: Case, found: Outcome) -> Judged:
    each, first = num_games(case.task)
    return judge(found.scores, num_games=each, num_first=first, signal=found.signal)


def line_of(case: Case, found: Outcome) -> str:
    one = judged(case, found)
    return (
        f"{case}: start {one.start:.2f} best {one.best:.2f} final {one.final:.2f} kept {one.kept} "
        f"largest KL {found.largest_kl:.2g} {one.verdict} ({found.cpu_s:.0f} CPU-s)"
    )


HEADER = ("task", "preset", "rate", "start", "best", "final", "kept", "largest KL", "classes")


def table_of(found: Found) -> str:
    """One row for the seeds of a task, preset and rate."""
    rows = []
    for (name, preset, rate), cases in series(found, lambda c: (c.task, c.preset, c.rate)).items():
        judgements = [judged(case, found[case]) for case in cases]
        classes = Counter(one.verdict for one in judgements)
        rows.append(
            (
                f"`{name}`",
                f"`{preset}`",
                f"{rate}",
                " ".join(f"{one.start:.2f}" for one in judgements),
                " ".join(f"{one.best:.2f}" for one in judgements),
                " ".join(f"{one.final:.2f}" for one in judgements),
                " ".join(one.kept for one in judgements),
                " ".join(f"{found[case].largest_kl:.2g}" for case in cases),
                ", ".join(f"{num} {kind}" for kind, num in classes.items()),
            )
        )
    return table(HEADER, rows)


def classes_of(found: Found) -> str:
    """Runs by class, for each preset and rate."""
    rows = []
    for (preset, rate), cases in series(found, lambda c: (c.preset, c.rate)).items():
        counts = Counter(judged(case, found[case]).verdict for case in cases)
        rows.append((f"`{preset}`", rate, *(counts[kind] for kind in Verdict)))
    return table(("preset", "rate", *Verdict), rows)


def series(
    found: Found, by: Callable[[Case], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Case]]:
    cases: dict[tuple[Any, ...], list[Case]] = {}
    for case in found:
        cases.setdefault(by(case), []).append(case)
    return cases


# what is published

MARKS = {
    Verdict.STAYED: "",
    Verdict.FELL: " fell",
    Verdict.STALLED: " stalled",
    Verdict.COLLAPSED: " collapsed",
    Verdict.NO_SIGNAL: " no signal",
}


def finals_of(found: Found) -> str:
    """The final success of every run, with its class where it has not learnt or not kept it."""
    rates = [*dict.fromkeys(case.rate for case in found)]
    rows = []
    for (name, preset), cases in series(found, lambda c: (c.task, c.preset)).items():
        starts = {case.seed: f"{found[case].scores[0]:.2f}" for case in cases}
        cells = []
        for rate in rates:
            ones = [judged(case, found[case]) for case in cases if case.rate == rate]
            cells.append(" / ".join(f"{one.final:.2f}{MARKS[one.verdict]}" for one in ones))
        rows.append((f"`{name}`", f"`{preset}`", " / ".join(starts.values()), *cells))
    return table(("task", "preset", "start", *(f"rate {rate}" for rate in rates)), rows)


def publish(label: str, found: Found, path: Path) -> dict[str, Found]:
    """Keep the outcomes in the file, in place of those that the label had. Returns those of all labels."""
    published = load(path) if path.exists() else {}
    published[label] = found
    rows = [
        json.dumps({"label": of, **asdict(case), **asdict(one)})
        for of, outcomes in published.items()
        for case, one in outcomes.items()
    ]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    return published


def load(path: Path) -> dict[str, Found]:
    published: dict[str, Found] = {}
    for row in json.loads(path.read_text()):
        label = row.pop("label")
        of_case = {one.name: row.pop(one.name) for one in fields(Case)}
        published.setdefault(label, {})[Case(**of_case)] = Outcome(**row)
    return published


def section_of(published: Mapping[str, Found]) -> str:
    parts = [
        f"**{label}.** Runs by class, and the final success of each seed:\n\n"
        f"{classes_of(found)}\n\n{finals_of(found)}"
        for label, found in published.items()
    ]
    return (
        "## The gauntlet, in one process\n\n"
        "`python benchmarks/gauntlet.py one-process --save FILE --publish LABEL`: twelve small tasks that nobody "
        "tuned for, played by a model of 20,000 parameters after weak demonstrations. The docstring of the program "
        "describes the tasks and the rules of the classes, which were written before the runs. "
        f"[All outcomes](images/{OUTCOMES.name}).\n\n" + "\n\n".join(parts)
    )


def assignments(given: Sequence[str]) -> dict[str, JSON]:
    """The settings by name.

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
