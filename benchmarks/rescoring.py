"""Re-score what a SmolLM2 run trained, in bfloat16, under the version each token names.

python benchmarks/rescoring.py [--steps 6]

A plain transformers forward in bfloat16 over whole sequences; the engine sampled the same tokens
one by one, with KV of its own. A float32 forward of the same weights says how far bfloat16 is off
by itself; the float32 bound (1e-3, in `tests/loop/test_training.py`) is about correctness.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.models import resolve_model
from areal_sdk.telemetry import RunDir
from areal_sdk.trajectory import Trajectory

ROOT = Path(__file__).parents[1]


def train(directory: Path, steps: int) -> RunDir:
    agent = Path(__file__).parent / "agents" / "kept_weights.py"
    command = [sys.executable, "-m", "areal_sdk", "train", str(agent), "--json"]
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


@torch.no_grad()
def scored(
    model: torch.nn.Module, exact: torch.nn.Module, trajectory: Trajectory, version: int
) -> list[tuple[float, float, float]]:
    """Logprobs of the trained tokens of `version`: stored, by `model`, by `exact`."""
    where = [
        i for i, v in enumerate(trajectory.versions) if v == version and trajectory.loss_mask[i]
    ]
    if not where:
        return []
    tokens = torch.tensor(trajectory.tokens)[None]
    plain, reference = (
        torch.log_softmax(forward(tokens).logits[0].float(), -1) for forward in (model, exact)
    )
    return [
        (
            trajectory.logprobs[i],
            float(plain[i - 1, trajectory.tokens[i]]),
            float(reference[i - 1, trajectory.tokens[i]]),
        )
        for i in where
    ]


def row(name: str, pairs: Iterable[tuple[float, float]]) -> tuple[str, ...]:
    found = sorted(abs(a - b) for a, b in pairs)
    quantiles = (found[round(q * (len(found) - 1))] for q in (0.5, 0.9, 0.99, 1.0))
    return (name, *(f"{value:.4f}" for value in (*quantiles, statistics.fmean(found))))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as scratch:
        run = train(Path(scratch), steps)
        records = [run.find_episode(summary.id) for summary in run.list_episodes()]
        trajectories = [t for record in records for t in record.trajectories]
        split = sum(len(set(turn.versions)) > 1 for r in records for turn in r.episode.turns)
        where = resolve_model("smollm2")
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.bfloat16)
        exact = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
        found: list[tuple[float, float, float]] = []
        for version in sorted({v for t in trajectories for v in t.versions if v >= 0}):
            if version:
                weights = load_file(Path(scratch) / f"v{version}.safetensors")
                for each in (model, exact):  # the same bfloat16 weights, widened for `exact`
                    each.load_state_dict(weights, strict=False)
            found += [row for t in trajectories for row in scored(model, exact, t, version)]
    rows = [
        row("stored, plain bfloat16 forward", ((stored, plain) for stored, plain, _ in found)),
        row("stored, float32 forward", ((stored, ref) for stored, _, ref in found)),
        row("plain bfloat16, float32 forward", ((plain, ref) for _, plain, ref in found)),
    ]
    text = table(("difference between", "median", "p90", "p99", "max", "mean"), rows)
    print(text)
    write_section(
        "rescoring",
        "## Re-scoring SmolLM2 in bfloat16\n\n"
        f"`python benchmarks/rescoring.py --steps {steps}`: absolute differences of logprobs over "
        f"{len(found)} trained tokens. Each token is scored again with the version of the weights that "
        f"it names; {split} turns span two versions. The last row compares two forward passes: it is "
        "the difference that bfloat16 makes by itself.\n\n"
        f"{text}",
    )


if __name__ == "__main__":
    main()
