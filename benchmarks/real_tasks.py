"""The examples on recognised tasks, over seeds: the model as it is, after imitation, after learning from the verdict.

    python benchmarks/real_tasks.py bfcl [--seeds 0 1 2] [--imitate-once] [--keep DIR] [--write]

SmolLM2 as it is is evaluated once. Each seed is a run of `areal-sdk train` with the example of the package, as shipped. Its evaluation `before` measures the weights after imitation, `after` those of the last step. Then every
trained token is scored again by a plain transformers forward, in the dtype that the engine samples in. With
`--imitate-once` all further seeds begin with the weights after the imitation of the first, and differ in
reinforcement learning alone. DIR keeps what each seed gave, and no weights: a seed that is there is not run again. `--write` puts the tables into
the README of the package.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rescored import KEEP_WEIGHTS, quantiles, rescored, trained_episodes
from safetensors.torch import load_file, save_file
from seeds import with_interval
from tables import table, write_section

from areal_sdk import ConfigError, Run
from areal_sdk.telemetry import RunDir

ROOT = Path(__file__).parents[1]
PHASES = {"before": "after imitation", "after": "after RL"}


Evaluations = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Example:
    package: str
    name: str
    splits: Mapping[str, str]
    """Descriptions of the splits, by name."""
    measures: Sequence[str]
    """The columns of an evaluation."""

    @property
    def directory(self) -> Path:
        return ROOT / "plugins" / self.package

    @property
    def arguments(self) -> list[str]:
        return [f"examples/{self.name}.py", "--config", f"examples/{self.name}.toml"]


EXAMPLES = {
    "bfcl": Example("areal-sdk-bfcl", "first_request", {"eval": "held-out requests"}, ("success",)),
    "agentdojo": Example(
        "areal-sdk-agentdojo",
        "gullible",
        {
            "eval": "a goal of neither, attack `direct`",
            "transfer": "goals of training, attack `ignore_previous`",
        },
        ("success", "agentdojo/resisted", "agentdojo/utility_under_attack"),
    ),
}


@dataclass(frozen=True, slots=True)
class Seed:
    """The figures of one seed."""

    evaluations: Evaluations
    steps: Sequence[Mapping[str, float]]
    num_episodes: int
    num_samples: int
    num_tokens: int
    """Tokens that the trainer counted, by the record of each step."""
    num_rescored: int
    dtype: str
    """Dtype of the engine, and of the forward that scored again."""
    differences: Sequence[float]
    """Quantiles of the absolute differences of logprobs."""

    def find(self, phase: str, split: str) -> Mapping[str, Any]:
        return next(r for r in self.evaluations if (r["name"], r["split"]) == (phase, split))


def play(example: Example, seed: int, keep: Path, *, imitated: Path | None = None) -> Seed:
    """The seed's figures, from `keep` if they are there. With `imitated` it begins with these weights."""
    name = f"{example.name}-{seed}" if imitated is None else f"{imitated.name}-{seed}"
    file, directory = keep / f"{name}.json", keep / name
    if file.exists():
        return Seed(**json.loads(file.read_text()))
    directory.mkdir(exist_ok=True)
    weights = directory / "weights"
    shutil.rmtree(weights, ignore_errors=True)  # of a run that was killed
    weights.mkdir()
    given = ["--plugin", str(KEEP_WEIGHTS)]
    if imitated is not None:
        given += ["--model", str(imitated), "--set", "sft.steps=0"]
    _areal_sdk(example, "train", seed, directory / "run", *given, kept=weights)
    found = _figures(RunDir.open(directory / "run"), weights, str(imitated or "smollm2"))
    if imitated is None and not (model := imitated_by(example, seed, keep)).exists():
        partial = model.with_suffix(".partial")
        shutil.copytree(directory / "run" / "model", partial, dirs_exist_ok=True)
        state = load_file(weights / "v0.safetensors")
        save_file(state, partial / "model.safetensors", metadata={"format": "pt"})
        partial.rename(model)
    file.write_text(json.dumps(asdict(found)))
    for large in (weights, directory / "run" / "checkpoints"):
        shutil.rmtree(large)
    return found


def imitated_by(example: Example, seed: int, keep: Path) -> Path:
    """The model after the imitation of a seed."""
    return keep / f"{example.name}-{seed}-imitated"


def measure_untrained(example: Example, keep: Path) -> Evaluations:
    """The evaluations of the model as it is."""
    found: list[Mapping[str, Any]] = []
    for split in example.splits:
        run = keep / f"{example.name}-untrained-{split}"
        _areal_sdk(example, "eval", 0, run, "--split", split, "--record")
        found += Run(run).evaluations()
    return found


def _figures(run: RunDir, weights: Path, model: str) -> Seed:
    records = list(trained_episodes(run))
    trajectories = [one for record in records for one in record.trajectories]
    dtype = run.read_config()["engine"]["dtype"]
    scores = rescored(trajectories, weights, model=model, dtype=getattr(torch, dtype))
    steps = run.read_steps()
    counted = [run.read_tokens(row["step"]) for row in steps]
    return Seed(
        evaluations=Run(run.path).evaluations(),
        steps=steps,
        num_episodes=len(records),
        num_samples=len(trajectories),
        num_tokens=sum(one.num_tokens for one in counted if one is not None),
        num_rescored=len(scores),
        dtype=dtype,
        differences=quantiles(abs(stored - again) for stored, again in scores),
    )


def _areal_sdk(
    example: Example, command: str, seed: int, run: Path, *arguments: str, kept: Path | None = None
) -> None:
    """Make the run directory `run`, if it is not there with its last evaluation."""
    last = "after" if command == "train" else "eval"
    with suppress(ConfigError):
        if any(row["name"] == last for row in Run(run).evaluations()):
            return
    shutil.rmtree(run, ignore_errors=True)
    words = [sys.executable, "-m", "areal_sdk", command, *example.arguments, *arguments]
    for setting in (f"run.seed={seed}", f"run.dir={run.parent}", f"run.name={run.name}"):
        words += ["--set", setting]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KEEP_WEIGHTS": str(kept)}
    subprocess.run(words, check=True, cwd=example.directory, env=env)


def page(example: Example, command: str, untrained: Evaluations, seeds: Mapping[int, Seed]) -> str:
    """The tables, and what was measured beside them."""
    parts = [f"`python benchmarks/real_tasks.py {command}`"]
    for split, what in example.splits.items():
        for measure in example.measures:
            parts.append(_table(f"{measure}: {what}", untrained, seeds, split, measure))
    parts.append(_tokens(seeds))
    return "\n\n".join(parts)


def _table(
    title: str, untrained: Evaluations, seeds: Mapping[int, Seed], split: str, measure: str
) -> str:
    """A column a seed, and the mean over them with the interval of Student's t."""
    first = next(row for row in untrained if row["split"] == split)
    rows = [["as it is, once", *[""] * len(seeds), _cell(first, measure)]]
    values = {
        phase: [one.find(phase, split).get(measure) for one in seeds.values()] for phase in PHASES
    }
    for phase, what in PHASES.items():
        cells = [_cell(one.find(phase, split), measure) for one in seeds.values()]
        rows.append([what, *cells, _mean(values[phase])])
    pairs = zip(values["before"], values["after"], strict=True)
    changes = [None if old is None or new is None else new - old for old, new in pairs]
    signed = ["" if change is None else f"{change:+.2f}" for change in changes]
    rows.append(["change by RL", *signed, _mean(changes)])
    return table([title, *(f"seed {seed}" for seed in seeds), "mean"], rows)


def _cell(row: Mapping[str, Any], measure: str) -> str:
    if row.get(measure) is None:
        return ""
    low, high = row.get(f"{measure}_low"), row.get(f"{measure}_high")
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{row[measure]:.2f}{interval}"


def _mean(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    if len(found) != len(values) or len(found) < 2:
        return ""
    return with_interval(found)


def _tokens(seeds: Mapping[int, Seed]) -> str:
    header = ["seed", "episodes trained", "samples an episode", "tokens trained", "scored again"]
    header += ["forward", "difference: p99, most, mean"]
    rows: list[list[object]] = []
    for seed, one in seeds.items():
        row: list[object] = [seed, one.num_episodes, f"{one.num_samples / one.num_episodes:.2f}"]
        row += [one.num_tokens, one.num_rescored, one.dtype]
        rows.append([*row, ", ".join(f"{value:.1e}" for value in one.differences[2:])])
    return table(header, rows)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--imitate-once", action="store_true")
    parser.add_argument("--keep", type=Path, default=ROOT / "runs" / "real_tasks")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    example, keep = EXAMPLES[given.example], given.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    untrained = measure_untrained(example, keep)
    seeds: dict[int, Seed] = {}
    for seed in given.seeds:
        first = imitated_by(example, given.seeds[0], keep) if given.imitate_once and seeds else None
        seeds[seed] = play(example, seed, keep, imitated=first)
    command = f"{given.example} --seeds {' '.join(map(str, given.seeds))}"
    text = page(example, command + " --imitate-once" * given.imitate_once, untrained, seeds)
    print(text)
    if given.write:
        write_section("real-tasks", text, document=example.directory / "README.md")


if __name__ == "__main__":
    main()
