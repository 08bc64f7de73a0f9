"""`areal-sdk train` under each algorithm, on examples/agents/guess_number.py: steps and seconds to a success.

    python benchmarks/convergence_command.py [--algorithms grpo ppo ...] [--seed 0] [--keep DIR] [--write]

The real command, with its engine, gateway, trainer and rewards in processes of their own, and asynchronous: samples are up
to 2 versions old. `benchmarks/convergence.py` compares the same algorithms with more seeds in one process, without all
that.

`areal-sdk sft` teaches the format once, on the example's demonstrations; each run begins with these weights. The settings
are those of guess_number.toml, but asynchronous, with 2 minibatches and a constant learning rate. The options of the
presets are the defaults; `dapo` has `rollout.dynamic_sampling`, and the critic of `ppo` has the learning rate of the policy. A run
ends at the first evaluation (every 8 steps, 40 sampled games for each of the 7 digits) whose success reaches the
threshold, or after its last step. With `--keep` the runs stay in a directory, and those that have ended there are not repeated.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from guessing import EXAMPLE, example
from tables import table, write_section

THRESHOLD = 0.9
LEARNING_RATE = 5e-4
"""Half of what one process bears: twice as many updates a step, on samples of up to 2 versions before."""
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "ppo": (f"algorithm.ppo.critic_learning_rate={LEARNING_RATE}",),
    "rloo": (),
    "gspo": (),
    "dapo": ("rollout.dynamic_sampling=true",),
    "reinforce++": (),
    "cispo": (),
    "sapo": (),
    "m2po": (),
    "running_baseline": (),
}
WARM_UP = ("finetune.batch=64", "trainer.precision=float32", "engine.dtype=float32")
SETTINGS = (
    "run.deterministic=false",
    "run.checkpoint_every=0",
    "sft.steps=0",
    f"trainer.learning_rate={LEARNING_RATE}",
    "trainer.schedule=constant",
    "trainer.num_minibatches=2",
    "eval.every=8",
    "eval.samples=40",
    "eval.keep_best=false",
    "eval.after=false",
    f"eval.stop_at_success={THRESHOLD}",
)


@dataclass(frozen=True)
class Ended:
    """One run. Its fields are JSON."""

    name: str
    steps: list[int]
    successes: list[float]
    """Success of each evaluation."""
    train_s: float
    cpu_s: float
    """CPU-seconds of all processes, their start and the evaluations included."""
    staleness_max: float

    def row(self) -> tuple[str, ...]:
        reached = self.successes[-1] >= THRESHOLD
        return (
            f"`{self.name}`",
            str(self.steps[-1]) if reached else f"not in {self.steps[-1]}",
            f"{self.train_s:.0f}",
            f"{self.cpu_s:.0f}",
            " ".join(f"{success:.2f}" for success in self.successes),
            f"{self.staleness_max:.0f}",
        )


HEADER = (
    "algorithm",
    f"steps to {THRESHOLD}",
    "s of training",
    "CPU-s in all",
    "success before, and every 8 steps",
    "staleness max",
)


def command(directory: Path, *arguments: str, settings: Sequence[str]) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "areal_sdk", *arguments, "--json"),
            *(part for setting in settings for part in ("--set", setting)),
        ],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"areal-sdk {' '.join(arguments)}\n{done.stderr[-2000:]}")


def warm_up(directory: Path, seed: int) -> None:
    rows = directory / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"messages": game}) for game in example.demonstrations()))
    arguments = ("sft", str(rows), "--model", "tiny", "--steps", "300", "--learning-rate", "2e-3")
    command(directory, *arguments, settings=[*WARM_UP, "run.name=sft", f"run.seed={seed}"])


def measure(directory: Path, name: str, *, seed: int, steps: int) -> Ended:
    ended = directory / f"{name}.json"
    if not ended.exists():
        ended.write_text(json.dumps(asdict(run(directory, name, seed=seed, steps=steps))))
    return Ended(**json.loads(ended.read_text()))


def run(directory: Path, name: str, *, seed: int, steps: int) -> Ended:
    config = ("--config", str(EXAMPLE.with_suffix(".toml")), "--init-from", "runs/sft")
    own = (f"algorithm.name={name}", f"run.name={name}", f"run.steps={steps}", f"run.seed={seed}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command(
        directory,
        *("train", str(EXAMPLE), *config),
        settings=[*SETTINGS, *own, *ALGORITHMS[name]],
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (directory / "runs" / name / "metrics.jsonl").open() as file:
        rows = [json.loads(line) for line in file]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    taken = [row for row in rows if row["kind"] == "step"]
    return Ended(
        name,
        [int(row["step"]) for row in evaluations],
        [row["success"] for row in evaluations],
        next(row["train_seconds"] for row in rows if row["kind"] == "end"),
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        max(row["train/staleness_max"] for row in taken if "train/staleness_max" in row),
    )


def section(found: Sequence[Ended], *, seed: int, steps: int) -> str:
    return (
        "## Convergence of the algorithms under the real command\n\n"
        f"`python benchmarks/convergence_command.py --algorithms {' '.join(each.name for each in found)} --seed {seed} "
        f"--steps {steps} --write`: `areal-sdk train` on "
        f"guess_number, asynchronous, one seed, until an evaluation of 280 sampled games reaches {THRESHOLD}. Other work shared the two "
        "cores, so steps and CPU time say more than seconds. The docstring of the program describes the settings.\n\n"
        + table(HEADER, [each.row() for each in found])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithms", nargs="+", choices=[*ALGORITHMS], default=[*ALGORITHMS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--keep", type=Path, help="Keep the runs in this directory.")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch)
        if not (directory / "runs" / "sft").exists():
            warm_up(directory, options.seed)
        for name in options.algorithms:
            found.append(measure(directory, name, seed=options.seed, steps=options.steps))
            print(*found[-1].row(), sep="  ", flush=True)
    if options.write:
        write_section("convergence-command", section(found, seed=options.seed, steps=options.steps))


if __name__ == "__main__":
    main()
