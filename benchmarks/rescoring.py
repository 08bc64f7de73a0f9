"""Re-score what a SmolLM2 run trained, in bfloat16, under the version each token names.

python benchmarks/rescoring.py [--steps 6]

A plain transformers forward in bfloat16 over whole sequences; the engine sampled the same tokens
one by one, with KV of its own. A float32 forward of the same weights says how far bfloat16 is off
by itself; the float32 bound (1e-3, in `tests/loop/test_training.py`) is about correctness.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rescored import KEEP_WEIGHTS, quantiles, rescored
from tables import table, write_section

from areal_sdk.telemetry import RunDir

ROOT = Path(__file__).parents[1]
HEADER = ("difference between", "median", "p90", "p99", "max", "mean")


def train(directory: Path, steps: int) -> RunDir:
    command = [sys.executable, "-m", "areal_sdk", "train", "examples/agents/calculator.py"]
    command += ["--json", "--plugin", str(KEEP_WEIGHTS)]
    command += ["--config", "examples/agents/calculator.toml", "--steps", str(steps)]
    for setting in (
        "eval.before=false",
        "eval.after=false",
        "run.name=run",
        f"run.dir={directory}",
    ):
        command += ["--set", setting]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KEEP_WEIGHTS": str(directory)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT, env=env)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return RunDir.open(directory / "run")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as scratch:
        run = train(Path(scratch), steps)
        records = [run.find_episode(summary.id) for summary in run.list_episodes()]
        split = sum(len(set(turn.versions)) > 1 for r in records for turn in r.episode.turns)
        trajectories = [t for record in records for t in record.trajectories]
        plain, exact = (
            rescored(trajectories, Path(scratch), model="smollm2", dtype=dtype)
            for dtype in (torch.bfloat16, torch.float32)  # the same weights, widened
        )
    compared = {
        "stored, plain bfloat16 forward": [stored - here for stored, here in plain],
        "stored, float32 forward": [stored - here for stored, here in exact],
        "plain bfloat16, float32 forward": [
            here - there for (_, here), (_, there) in zip(plain, exact, strict=True)
        ],
    }
    rows = [
        (name, *(f"{value:.4f}" for value in quantiles(map(abs, values))))
        for name, values in compared.items()
    ]
    text = table(HEADER, rows)
    print(text)
    write_section(
        "rescoring",
        "## Re-scoring SmolLM2 in bfloat16\n\n"
        f"`python benchmarks/rescoring.py --steps {steps}`: absolute differences of logprobs over "
        f"{len(plain)} trained tokens. Each token is scored again with the version of the weights that "
        f"it names; {split} turns span two versions. The last row compares two forward passes: it is "
        "the difference that bfloat16 makes by itself.\n\n"
        f"{text}",
    )


if __name__ == "__main__":
    main()
