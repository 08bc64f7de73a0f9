"""The command part of benchmarks/gauntlet.py: `areal-sdk train` on one agent file after another."""

import json
import os
import re
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verdicts import Judged, Verdict, judge

HERE = Path(__file__).parent
ROOT = HERE.parent
NUM_EVALUATIONS, NUM_TASKS = 10, 100
SFT_STEPS = 1000
AWAY = re.compile(r"nats a token away|collapse|fell|forgot|put back|rolled back")
"""Notes that warn of a fall."""
IDLE = re.compile(r"hardly moves|no gradient|no signal|nothing to learn|all earn the same|differ")
"""Notes that explain why nothing is learnt."""


@dataclass(frozen=True)
class CommandTask:
    """A task of the real command."""

    name: str
    family: str
    model: str = "tiny"
    steps: int = 100
    sft_steps: int = 0
    samples: int = 1
    """Attempts at each task of an evaluation: more where there are few held-out tasks."""
    file: Path | None = None
    """The agent file, where it is not in benchmarks/gauntlet/."""
    arguments: tuple[str, ...] = ()
    is_single_turn: bool = False

    @property
    def agent(self) -> Path:
        return self.file or HERE / "gauntlet" / f"{self.name}.py"


def tiny(name: str, family: str, *, samples: int = 1, is_single_turn: bool = False) -> CommandTask:
    return CommandTask(
        name,
        family,
        sft_steps=SFT_STEPS,
        samples=samples,
        is_single_turn=is_single_turn,
    )


def smollm2(name: str, family: str, *, samples: int = 1, single: bool = False) -> CommandTask:
    return CommandTask(name, family, "smollm2", 30, samples=samples, is_single_turn=single)


PLUGINS = ROOT / "plugins"
TASKS = (
    CommandTask(
        "guess_number",
        "search",
        sft_steps=SFT_STEPS,
        samples=15,
        file=ROOT / "examples/agents/guess_number.py",
    ),
    tiny("sort_digits", "number skill", is_single_turn=True),
    tiny("mod7", "number skill", samples=2, is_single_turn=True),
    tiny("reverse", "string skill", is_single_turn=True),
    tiny("tool_choice", "tool choice", is_single_turn=True),
    tiny("two_tools", "two tools in order", samples=9),
    tiny("second_try", "self-correction", samples=10),
    tiny("nim", "game", samples=2),
    tiny("grid", "grid world"),
    tiny("noisy", "noisy reward", is_single_turn=True),
    tiny("garden", "delayed reward", samples=17),
    tiny("twenty_turns", "20 turns"),
    CommandTask(
        "spell_backward",
        "reasoning-gym",
        sft_steps=SFT_STEPS,
        file=PLUGINS / "areal-sdk-reasoning-gym/examples/spell_backward.py",
        arguments=("--reward", "reasoning_gym"),
    ),
    smollm2("json_format", "format", single=True),
    smollm2("shout", "format", samples=11, single=True),
    smollm2("choose_tool", "tool choice"),
    smollm2("find_then_send", "two tools in order"),
    smollm2("expression", "code", samples=2, single=True),
    CommandTask(
        "sums",
        "MCP server",
        "smollm2",
        30,
        file=PLUGINS / "areal-sdk-mcp/examples/sums.py",
        arguments=("--reward", "numeric_match"),
    ),
)
BY_NAME = {task.name: task for task in TASKS}


@dataclass(frozen=True)
class Ended:
    """One run of the command. Its fields are JSON."""

    name: str
    seed: int
    scores: list[float]
    """Successes, by evaluation."""
    num_games: int
    signal: float
    """The share of groups whose rewards differed, in the first quarter of the steps."""
    largest_kl: float
    """`train/kl_step` where the trainer reports it; else the KL to the sampler."""
    notes: list[str]
    ended: str
    cpu_s: float
    error: str = ""
    """The end of what a failed run printed."""

    @property
    def judged(self) -> Judged:
        each = self.num_games
        return judge(self.scores, num_games=each, num_first=each, signal=self.signal)

    @property
    def verdict(self) -> str:
        return "failed" if self.error else self.judged.verdict

    @property
    def notes_true_and_false(self) -> tuple[int, int]:
        """A note of a fall is true of a run that fell; one of idleness, of a run that learnt nothing."""
        falls = sum(bool(AWAY.search(note)) for note in self.notes)
        idles = sum(bool(IDLE.search(note)) for note in self.notes)
        has_fallen = self.verdict in (Verdict.FELL, Verdict.COLLAPSED)
        is_idle = self.verdict in (Verdict.STALLED, Verdict.NO_SIGNAL)
        num_true = falls * has_fallen + idles * is_idle
        return num_true, falls + idles - num_true

    def __str__(self) -> str:
        if self.error:
            return f"{self.name} seed {self.seed}: failed: {self.error.strip().splitlines()[-1]}"
        found = self.judged
        return (
            f"{self.name} seed {self.seed}: start {found.start:.2f} best {found.best:.2f} final {found.final:.2f} "
            f"kept {found.kept} largest KL {self.largest_kl:.2g} {found.verdict}, ended: {self.ended} "
            f"({self.cpu_s:.0f} CPU-s)"
        )


def settings_of(task: CommandTask, *, seed: int, name: str) -> list[str]:
    """The steps, and what measures them; everything else is the default."""
    return [
        f"run.name={name}",
        f"run.seed={seed}",
        f"run.steps={task.steps}",
        f"sft.steps={task.sft_steps}",
        f"eval.every={task.steps // NUM_EVALUATIONS}",
        f"eval.tasks={NUM_TASKS}",
        f"eval.samples={task.samples}",
        "eval.temperature=1.0",
    ]


def measure(
    task: CommandTask, *, seed: int, directory: Path, python: str, more: Sequence[str]
) -> Ended:
    """The run as it ended. One that ended before, in this directory, is not repeated."""
    name, file = f"{task.name}-{seed}", kept(task, seed, directory)
    if not file.exists():
        ended = run(task, seed=seed, name=name, directory=directory, python=python, more=more)
        file.write_text(json.dumps(asdict(ended)))
    return Ended(**json.loads(file.read_text()))


def kept(task: CommandTask, seed: int, directory: Path) -> Path:
    """The file of a run that has ended."""
    return directory / f"{task.name}-{seed}.json"


def run(
    task: CommandTask, *, seed: int, name: str, directory: Path, python: str, more: Sequence[str]
) -> Ended:
    command = [python, "-m", "areal_sdk", "train", str(task.agent), "--model", task.model]
    command += [*task.arguments]
    for setting in (*settings_of(task, seed=seed, name=name), *more):
        command += ["--set", setting]
    before = cpu_of_children()
    log = directory / f"{name}.log"
    with log.open("w") as file:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    cpu_s = cpu_of_children() - before
    told = log.read_text()
    if done.returncode:
        return Ended(task.name, seed, [0.0], 1, 0.0, 0.0, [], "", cpu_s, error=told[-2000:])
    with (directory / "runs" / name / "metrics.jsonl").open() as file:
        rows = [json.loads(line) for line in file]
    return read(task.name, seed, rows, told.splitlines(), cpu_s=cpu_s)


def read(
    name: str, seed: int, rows: Sequence[dict[str, Any]], told: Sequence[str], *, cpu_s: float
) -> Ended:
    """The run as its directory and its output tell it. The last weights are measured once."""
    evaluations = {int(row["step"]): row for row in rows if row["kind"] == "eval"}
    steps = [row for row in rows if row["kind"] == "step"]
    early = steps[: max(1, len(steps) // 4)]
    num_groups = sum(row["batch/groups"] for row in early)
    alike = sum(row["batch/uniform_groups"] for row in early)
    moves = [row.get("train/kl_step", row.get("train/kl_behaviour", 0.0)) for row in steps]
    return Ended(
        name,
        seed,
        [row["success"] for _, row in sorted(evaluations.items())],
        int(min(row["episodes"] for row in evaluations.values())),
        1.0 - alike / num_groups if num_groups else 0.0,
        max(moves, default=0.0),
        [line.strip() for line in told if line.startswith(("note: ", "warning: "))],
        str(next((row["ended"] for row in rows if row["kind"] == "end"), "")),
        cpu_s,
    )


def cpu_of_children() -> float:
    """CPU-seconds of the children that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


HEADER = (
    "task",
    "family",
    "model",
    "start",
    "best",
    "final",
    "kept",
    "largest KL",
    "classes",
    "notes true, false",
    "CPU-s",
)


def row_of(task: CommandTask, found: Sequence[Ended]) -> tuple[str, ...]:
    judged = [one.judged for one in found]
    classes = [one.verdict for one in found]
    notes = [one.notes_true_and_false for one in found]
    return (
        f"`{task.name}`",
        task.family,
        task.model,
        " ".join(f"{one.start:.2f}" for one in judged),
        " ".join(f"{one.best:.2f}" for one in judged),
        " ".join(f"{one.final:.2f}" for one in judged),
        " ".join(one.kept for one in judged),
        " ".join(f"{one.largest_kl:.2g}" for one in found),
        ", ".join(f"{classes.count(kind)} {kind}" for kind in dict.fromkeys(classes)),
        f"{sum(yes for yes, _ in notes)}, {sum(no for _, no in notes)}",
        f"{sum(one.cpu_s for one in found) / len(found):.0f}",
    )
