"""Re-score what a SmolLM2 run trained, in bfloat16, under the version each token names.

python benchmarks/rescoring.py [--steps 6]

A plain transformers forward in bfloat16 over whole sequences; the engine sampled the same tokens
one by one, with KV of its own. The distribution of |difference| is what bfloat16 costs: the
float32 bound (1e-3, in `tests/loop/test_training.py`) is about correctness.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.models import resolve_model
from areal_sdk.telemetry import RunDir
from areal_sdk.types import Trajectory

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
def errors(model: torch.nn.Module, trajectory: Trajectory, version: int) -> list[float]:
    where = [
        i for i, v in enumerate(trajectory.versions) if v == version and trajectory.loss_mask[i]
    ]
    if not where:
        return []
    logits = model(torch.tensor([trajectory.tokens])).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)
    return [
        abs(float(logprobs[i - 1, trajectory.tokens[i]]) - trajectory.logprobs[i]) for i in where
    ]


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
        model = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2"), dtype=torch.bfloat16)
        found: list[float] = []
        for version in sorted({v for t in trajectories for v in t.versions if v >= 0}):
            if version:
                weights = load_file(Path(scratch) / f"v{version}.safetensors")
                model.load_state_dict(weights, strict=False)
            found += [error for t in trajectories for error in errors(model, t, version)]
    found.sort()
    row = (
        len(found),
        split,
        *(f"{found[round(q * (len(found) - 1))]:.4f}" for q in (0.5, 0.9, 0.99, 1.0)),
        f"{statistics.fmean(found):.4f}",
    )
    header = ("trained tokens", "turns over two versions", "median", "p90", "p99", "max", "mean")
    text = table(header, [row])
    print(text)
    print(json.dumps({"median": found[len(found) // 2]}))
    write_section(
        "rescoring",
        "## Re-scoring SmolLM2 in bfloat16\n\n"
        f"`python benchmarks/rescoring.py --steps {steps}`: |stored logprob - that of a plain "
        f"transformers forward in bfloat16 under the version named|.\n\n{text}",
    )


if __name__ == "__main__":
    main()
