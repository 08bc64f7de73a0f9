"""The demo with all weights trained and with an adapter: what is learnt, and what it takes.

    python benchmarks/lora.py [--seeds 0] [--rank 16] [--keep DIR] [--write]

Both are `areal-sdk train examples/agents/calculator.py` with calculator.toml; the arms differ in `[trainer.lora]` and
in the learning rate, which is ten times higher for the adapter. With `--keep` the runs stay in a directory, and those that have
ended there are not repeated.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tables import table, write_section

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "benchmarks" / "agents" / "update_sizes.py"
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    settings: tuple[str, ...]


def arms(rank: int) -> list[Arm]:
    adapter = f"trainer.lora.rank={rank}"
    return [
        Arm("all weights, 3e-5", ()),
        Arm(f"rank {rank}, 3e-4", (adapter, "trainer.learning_rate=3e-4")),
    ]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. Its fields are JSON."""

    name: str
    seed: int
    summary: dict[str, Any]
    steps: list[dict[str, Any]]
    peak_bytes: int
    checkpoint_bytes: int
    update_bytes: int

    def success(self, when: str, split: str) -> str:
        found = self.summary[when][split]
        return f"{found['success']:.2f} [{found['success_low']:.2f}, {found['success_high']:.2f}]"

    def median(self, metric: str) -> float:
        """The median over the steps that have the metric: a step whose samples are all older has no
        `dlogp_lag_0`."""
        return float(statistics.median(step[metric] for step in self.steps if metric in step))

    def row(self) -> tuple[str, ...]:
        until = next(
            (s["train_seconds"] for s in self.steps if s["batch/success"] >= 0.9), float("nan")
        )
        return (
            self.name,
            str(self.seed),
            self.success("before", "eval"),
            self.success("after", "eval"),
            self.success("after", "transfer"),
            f"{until:.0f}",
            f"{self.peak_bytes / 1e6:.0f}",
            f"{self.checkpoint_bytes / 1e6:.0f}",
            f"{self.update_bytes / 1e6:.0f}",
            f"{self.median('train/cpu_s'):.2f}",
            f"{self.median('train/step_s'):.2f}",
            f"{self.median('train/dlogp_lag_0'):.3f}",
        )


HEADER = (
    "trained",
    "seed",
    "held-out before",
    "after",
    "never-trained operation after",
    "s of training until a batch's success is 0.9",
    "trainer's peak memory, MB",
    "a checkpoint, MB",
    "a weight update, MB",
    "trainer's CPU-s a step",
    "trainer's s a step",
    "mean error of logprobs at lag 0",
)


def measure(arm: Arm, seed: int, directory: Path) -> Measured:
    name = f"{arm.name.replace(', ', '-').replace(' ', '-')}-{seed}"
    ended = directory / f"{name}.json"
    if not ended.exists():
        ended.write_text(json.dumps(asdict(run(arm, seed, name, directory))))
    return Measured(**json.loads(ended.read_text()))


def run(arm: Arm, seed: int, name: str, directory: Path) -> Measured:
    sizes = directory / f"{name}.sizes"
    command = [sys.executable, "-m", "areal_sdk", "train", "examples/agents/calculator.py"]
    command += ["--config", "examples/agents/calculator.toml", "--seed", str(seed), "--json"]
    command += ["--plugin", str(PLUGIN)]
    for setting in (f"run.dir={directory}", f"run.name={name}", *arm.settings):
        command += ["--set", setting]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "UPDATE_SIZES": str(sizes)}
    with (directory / f"{name}.out").open("w+") as output:
        process = subprocess.Popen(command, stdout=output, cwd=ROOT, env=env)
        peak_bytes = 0
        while process.poll() is None:
            peak_bytes = max(peak_bytes, trainer_memory(process.pid))
            time.sleep(POLL_S)
        if process.returncode:
            raise SystemExit(process.returncode)
        output.seek(0)
        summary = json.load(output)
    rows = [json.loads(line) for line in (directory / name / "metrics.jsonl").open()]
    last = max((directory / name / "checkpoints").glob("step-*"))
    return Measured(
        arm.name,
        seed,
        summary,
        [row for row in rows if row["kind"] == "step" and "train/step_s" in row],
        peak_bytes,
        sum(path.stat().st_size for path in last.iterdir() if path.is_file()),
        max(map(int, sizes.read_text().split())),
    )


def trainer_memory(parent: int) -> int:
    """Anonymous memory of the rank process in bytes: files that it maps are not its own."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == parent and b"trainer-0" in (entry / "cmdline").read_bytes():
                status = (entry / "status").read_text().split("RssAnon:")[1]
                return int(status.split()[0]) * 1024
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return 0


def section(found: list[Measured], rank: int, seeds: list[int]) -> str:
    listed = " ".join(map(str, seeds))
    return (
        "## The demo with an adapter\n\n"
        f"`python benchmarks/lora.py --seeds {listed} --rank {rank}`: the demo of the section above, with all weights "
        f"trained and with an adapter of rank {rank} (`--set trainer.lora.rank={rank}`) at ten times the learning rate. Memory is the anonymous memory of the trainer's process, its libraries "
        f"included, read every {POLL_S * 1000:.0f} ms. A checkpoint holds weights and moments. Times are medians over "
        "the 20 steps; other work shared the two cores, so CPU time says more than wall time. The last column is the mean "
        "difference between the engine's logprob of a sampled token and the trainer's under the same weights, in "
        "bfloat16.\n\n" + table(HEADER, [each.row() for each in found])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--keep", type=Path, help="Keep the runs in this directory.")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch)
        for seed in arguments.seeds:
            for arm in arms(arguments.rank):
                found.append(measure(arm, seed, directory))
                print(*found[-1].row(), sep="  ", flush=True)
    text = section(found, arguments.rank, arguments.seeds)
    print(text)
    if arguments.write:
        write_section("lora", text)


if __name__ == "__main__":
    main()
