"""Asynchronous against synchronous training: the same engine, trainer and agent.

    python benchmarks/async_vs_sync.py [--rounds 2] [--steps 10] [--only calculator|tools|learning]

Synchronous is `max_staleness = 0`: a batch is played, then trained, then the next one begins.

* calculator: the policy stays that of a half-trained run (learning rate ~ 0), so that all steps are
  alike. Ideal is (G + T) / max(G, T), with G and T the synchronous run's CPU-seconds a step of the
  engine's and the trainer's process. The synchronous run with two threads a process is reported too.
* tools: six calls an episode with slow tools, equal `max_inflight`. Synchronous training never has
  more than its batch in flight, whatever is allowed; asynchronous training so limited is a row too.
* learning: the real thing, both ways from the same start, a seed a round: time, and held-out success.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import table, write_section

from areal_sdk.telemetry import RunDir

ROOT = Path(__file__).parents[1]
CALCULATOR = ROOT / "examples" / "agents" / "calculator.py"
SLOW_TOOLS = Path(__file__).parent / "agents" / "slow_tools.py"
ETA = 2
WARM_STEPS = 3


@dataclass(frozen=True)
class Run:
    """The metrics of one run, its first steps left out."""

    steps: list[dict[str, float]]
    summary: dict[str, Any]

    @property
    def step_s(self) -> float:
        times = [row["train_seconds"] for row in self.steps]
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    def cpu_s(self, process: str) -> float:
        used = [row[f"train/cpu_{process}_s"] for row in self.steps]
        return (used[-1] - used[0]) / (len(used) - 1)

    @property
    def mean_step_s(self) -> float:
        times = [row["train_seconds"] for row in self.steps]
        return (times[-1] - times[0]) / (len(times) - 1)

    def last(self, name: str) -> float:
        return self.steps[-1].get(name, 0.0)


def train(agent: Path, **settings: object) -> Run:
    directory = Path(tempfile.mkdtemp(prefix="areal-sdk-bench-"))
    values = {"run.dir": directory, "run.name": "run", "run.checkpoint_every": 0, **settings}
    command = [sys.executable, "-m", "areal_sdk", "train", str(agent), "--json"]
    for key, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        command += ["--set", f"{key}={text}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").open()]
    steps = [row for row in rows if row["kind"] == "step"]
    return Run(steps[WARM_STEPS - 1 :], json.loads(done.stdout))


def half_trained() -> str:
    """A run directory whose policy succeeds in some of its attempts: most groups have a gradient."""
    run = train(
        CALCULATOR,
        **{"run.steps": 6, "eval.before": False, "eval.after": False, "run.seed": 1},
    )
    return str(run.summary["run_dir"])


def calculator(rounds: int, steps: int) -> str:
    start = half_trained()
    common = {
        "init_from": start,
        "trainer.learning_rate": 1e-12,
        "run.steps": WARM_STEPS + steps,
        "eval.before": False,
        "eval.after": False,
        "rollout.shuffle": False,
    }
    synchronous = {"rollout.max_staleness": 0, "rollout.max_inflight": 32}
    sides = {
        "synchronous": synchronous,
        "synchronous, 2 threads": synchronous | {"engine.threads": 2, "trainer.threads": 2},
        f"asynchronous, eta = {ETA}": {"rollout.max_staleness": ETA, "rollout.max_inflight": 64},
    }
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, own in sides.items():
            runs[name].append(train(CALCULATOR, **common, **own))

    def median(name: str, value: str) -> float:
        picked = [r.step_s if value == "step" else r.cpu_s(value) for r in runs[name]]
        return statistics.median(picked)

    sync, fast = next(iter(sides)), list(sides)[2]
    g, t = median(sync, "engine"), median(sync, "trainer-0")
    ideal = (g + t) / max(g, t)
    speedup = median(sync, "step") / median(fast, "step")
    rows = [
        (
            name,
            f"{median(name, 'step'):.2f}",
            *(f"{median(name, p):.2f}" for p in ("engine", "trainer-0", "main")),
            f"{median(sync, 'step') / median(name, 'step'):.2f}x",
        )
        for name in sides
    ]
    stale = max(row["batch/staleness_max"] for r in runs[fast] for row in r.steps)
    assert stale <= ETA
    header = ("calculator", "s a step", "engine CPU-s", "trainer CPU-s", "main CPU-s", "speed-up")
    return (
        f"{table(header, rows)}\n\nIdeal (G + T) / max(G, T) = {ideal:.2f}; reached "
        f"{speedup:.2f}x, {speedup / ideal:.0%} of it. Staleness at most {stale:.0f} (eta = {ETA})."
    )


def tools(rounds: int, steps: int) -> str:
    common = {
        "trainer.learning_rate": 1e-12,
        "run.steps": WARM_STEPS + steps,
        "rollout.batch": 16,
        "rollout.max_inflight": 48,
        "eval.before": False,
        "eval.after": False,
    }
    sides = {
        "synchronous": {"rollout.max_staleness": 0},
        f"asynchronous, eta = {ETA}": {"rollout.max_staleness": ETA},
        "the same, a batch in flight": {"rollout.max_staleness": ETA, "rollout.max_inflight": 16},
    }
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, own in sides.items():
            runs[name].append(train(SLOW_TOOLS, **common | own))
    sync = statistics.median(r.mean_step_s for r in runs["synchronous"])
    rows = []
    for name, those in runs.items():
        seconds = statistics.median(r.mean_step_s for r in those)
        stale = [r.summary["ledger"]["dropped"].get("stale", 0) for r in those]
        started = [r.summary["ledger"]["started"] for r in those]
        age = max(row["batch/staleness_max"] for r in those for row in r.steps)
        trained, ended = durations(those)
        rows.append(
            (
                name,
                f"{seconds:.2f}",
                *(
                    f"{statistics.median(r.cpu_s(process) for r in those):.2f}"
                    for process in ("engine", "trainer-0")
                ),
                f"{sync / seconds:.2f}x",
                f"{sum(stale) / sum(started):.1%}",
                f"{age:.0f}",
                percentiles(trained),
                percentiles(ended),
            )
        )
    header = (
        "slow tools",
        "s a step",
        "engine CPU-s",
        "trainer CPU-s",
        "speed-up",
        "stale drops",
        "staleness max",
        "trained: s p50 / p90 / p99",
        "started: s p50 / p90 / p99",
    )
    return table(header, rows)


def durations(runs: Iterable[Run]) -> tuple[list[float], list[float]]:
    """Seconds that episodes took: of those that were trained, and of all that were started."""
    episodes = [
        e for run in runs for e in RunDir.open(Path(run.summary["run_dir"])).list_episodes()
    ]
    return [e.duration_s for e in episodes if e.dropped is None], [e.duration_s for e in episodes]


def percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    picked = (ordered[round(q * (len(ordered) - 1))] for q in (0.5, 0.9, 0.99))
    return " / ".join(f"{value:.1f}" for value in picked)


def learning(rounds: int) -> str:
    rows = []
    for name, eta in (("synchronous", 0), (f"asynchronous, eta = {ETA}", ETA)):
        runs = [
            train(
                CALCULATOR,
                **{"run.steps": 14, "rollout.max_staleness": eta, "run.seed": seed},
            )
            for seed in range(rounds)
        ]
        success = [
            ", ".join(f"{run.summary[when]['eval']['success']:.2f}" for run in runs)
            for when in ("before", "after")
        ]
        seconds = ", ".join(f"{run.summary['train_seconds']:.0f}" for run in runs)
        rows.append((name, seconds, *success))
    header = ("calculator, 14 steps, by seed", "s of training", "held-out success before", "after")
    return table(header, rows)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", choices=("calculator", "tools", "learning"))
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], str]] = {
        "calculator": lambda: calculator(arguments.rounds, arguments.steps),
        "tools": lambda: tools(arguments.rounds, arguments.steps),
        "learning": lambda: learning(arguments.rounds),
    }
    for name, measure in parts.items():
        if arguments.only in (None, name):
            text = measure()
            print(text, flush=True)
            head = "## Asynchronous against synchronous\n\n" if name == "calculator" else ""
            command = f"`python benchmarks/async_vs_sync.py --only {name} --rounds {arguments.rounds} --steps {arguments.steps}`"
            write_section(f"async_vs_sync {name}", f"{head}{command}\n\n{text}")


if __name__ == "__main__":
    main()
