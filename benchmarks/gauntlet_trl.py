"""The trl part of benchmarks/gauntlet.py: `areal-sdk train` and TRL's `GRPOTrainer`, each at its defaults.

Both sides begin with the same weights (SmolLM2, or `tiny` after `areal-sdk sft` on the demonstrations), play the
same single-turn tasks, judge with the same environment, and train 32 samples a step, 8 of each question, at
most 256 tokens long. The rest is each side's default. Success before and after is measured by the same games.

This file is also the program of the other side, in an environment that has trl:

    python gauntlet_trl.py AGENT MODEL --steps 30 --seed 0 --to DIRECTORY
"""

import argparse
import asyncio
import functools
import json
import math
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gauntlet_command import CommandTask
from verdicts import error_of_difference
from wordplay import environment_of, load_agent

from areal_sdk import Task

NUM_QUESTIONS, NUM_SAMPLES, NUM_TOKENS = 4, 8, 256
NUM_GAMES = 300
"""Number of games of each of the measurements before and after."""
OURS, TRL = "areal-sdk", "trl"
PROCESS = re.compile(r"train/cpu_(main|engine|trainer-\d+)_s")
"""Counters of the CPU time of processes."""


@dataclass(frozen=True)
class Side:
    """One side's run. Its fields are JSON."""

    side: str
    name: str
    seed: int
    before: float
    after: float
    num_games: int
    sampled_tokens: float
    cpu_s: float
    """CPU-seconds of sampling and training, without the start and the measurements."""

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval of the gain."""
        pair = (self.before, self.num_games), (self.after, self.num_games)
        return 1.96 * error_of_difference(*pair)

    def per(self, amount: float) -> str:
        """The gain for each `amount`, with its interval.

        >>> Side("ours", "grid", 0, 0.2, 0.6, 10**6, 40_000, 80.0).per(40.0)
        '0.010 ± 0.000'
        """
        return f"{self.gain / amount:.3f} ± {self.half_width / amount:.3f}"


HEADER = (
    "task",
    "seed",
    "side",
    "before",
    "after",
    "sampled tokens",
    "CPU-s",
    "gain for 1,000 tokens",
    "gain for 10 CPU-s",
)


def row_of(side: Side) -> tuple[str, ...]:
    return (
        f"`{side.name}`",
        str(side.seed),
        side.side,
        f"{side.before:.2f}",
        f"{side.after:.2f}",
        f"{side.sampled_tokens:,.0f}",
        f"{side.cpu_s:.0f}",
        side.per(side.sampled_tokens / 1000),
        side.per(side.cpu_s / 10),
    )


def compare(
    task: CommandTask, *, seed: int, directory: Path, python: str, trl: str
) -> tuple[Side, Side]:
    """Both sides, one after the other. What has ended in this directory is not repeated."""
    model = first_weights(task, directory, python)
    made: dict[str, Callable[[], Side]] = {
        OURS: lambda: ours(task, model, seed=seed, directory=directory, python=python),
        TRL: lambda: theirs(task, model, seed=seed, directory=directory, python=python, trl=trl),
    }
    found = []
    for side, make in made.items():
        kept = directory / f"{side}-{task.name}-{seed}.json"
        if not kept.exists():
            kept.write_text(json.dumps(asdict(make())))
        found.append(Side(**json.loads(kept.read_text())))
    return found[0], found[1]


def first_weights(task: CommandTask, directory: Path, python: str) -> str:
    """SmolLM2 as it is; `tiny` after the demonstrations, which all seeds of both sides begin with."""
    if not task.sft_steps:
        return task.model
    model = directory / "models" / task.name
    if not (model / "config.json").exists():
        rows = directory / f"{task.name}.jsonl"
        games = load_agent(task.agent).demonstrations()
        rows.write_text("\n".join(json.dumps({"messages": game}) for game in games))
        steps, name = ("--steps", str(task.sft_steps)), f"sft-{task.name}"
        # The settings of the supervised warm-up of `areal-sdk train`.
        warm = ("--batch", "32", "--learning-rate", "1e-3", "--set", f"run.name={name}")
        areal(python, directory, "sft", str(rows), "--model", task.model, *steps, *warm)
        areal(python, directory, "export", f"runs/{name}", "--to", str(model), "--last")
    return str(model)


def areal(python: str, directory: Path, *arguments: str) -> None:
    run([python, "-m", "areal_sdk", *arguments], directory)


def run(command: Sequence[str], directory: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def ours(task: CommandTask, model: str, *, seed: int, directory: Path, python: str) -> Side:
    name = f"{task.name}-{seed}"
    settings = {
        "run.name": name,
        "run.seed": seed,
        "run.steps": task.steps,
        "sft.steps": 0,
        "eval.before": False,
        "eval.after": False,
        "rollout.max_new_tokens": NUM_TOKENS,
    }
    given = [
        part for key, value in settings.items() for part in ("--set", f"{key}={value}".lower())
    ]
    areal(python, directory, "train", str(task.agent), "--model", model, *given)
    path = directory / "runs" / name
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    # The counters begin with the processes, so the first step counts as much as the others on average.
    cpu_s = [sum(value for key, value in row.items() if PROCESS.match(key)) for row in steps]
    per_step = (cpu_s[-1] - cpu_s[0]) / max(1, len(steps) - 1)
    return Side(
        OURS,
        task.name,
        seed,
        success(task, model, directory=directory, python=python),
        success(task, str(path), directory=directory, python=python),
        NUM_GAMES,
        sum(row["batch/sampled_tokens"] * row["batch/episodes"] for row in steps),
        per_step * len(steps),
    )


def theirs(
    task: CommandTask, model: str, *, seed: int, directory: Path, python: str, trl: str
) -> Side:
    to = directory / f"{TRL}-{task.name}-{seed}"
    program = [trl, __file__, str(task.agent), model, "--to", str(to), "--seed", str(seed)]
    spent = json.loads(run([*program, "--steps", str(task.steps)], directory).splitlines()[-1])
    return Side(
        TRL,
        task.name,
        seed,
        success(task, model, directory=directory, python=python),
        success(task, str(to), directory=directory, python=python),
        NUM_GAMES,
        spent["tokens"],
        spent["cpu_s"],
    )


@functools.lru_cache
def success(task: CommandTask, model: str, *, directory: Path, python: str) -> float:
    """Held-out success at temperature 1, by `areal-sdk eval`: the same for both sides."""
    num_tasks = sum(1 for _ in load_agent(task.agent).tasks("eval"))
    samples = math.ceil(NUM_GAMES / num_tasks)
    told = run(
        [
            *(python, "-m", "areal_sdk", "eval", str(task.agent), "--model", model, "--json"),
            *("--temperature", "1.0", "--samples", str(samples)),
            *("--num-tasks", str(NUM_GAMES), "--set", f"rollout.max_new_tokens={NUM_TOKENS}"),
        ],
        directory,
    )
    [found] = json.loads(told).values()
    return float(found["success"])


# what runs in the environment of trl


def learn_with_trl(agent: Path, model: str, *, steps: int, seed: int, to: Path) -> dict[str, float]:
    """TRL's defaults but for the batch, which is four questions here too, and for the machine, which has no GPU."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from areal_sdk.models import resolve_model

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = load_agent(agent)
    environment = environment_of(module)
    tasks = {task.id: task for task in module.tasks("train")}
    directory = resolve_model(model)
    spent = {"tokens": 0.0, "cpu_s": 0.0}

    async def judged(task: Task, text: str) -> float:
        world = environment()
        await world.reset(task)
        return (await world.step({"role": "assistant", "content": text})).reward or 0.0

    async def opening(task: Task) -> list[dict[str, Any]]:
        return list(await environment().reset(task))

    def reward(
        completions: list[list[dict[str, str]]],
        completion_ids: list[list[int]],
        task: list[str],
        **_: object,
    ) -> list[float]:
        spent["tokens"] += sum(len(ids) for ids in completion_ids)
        texts = [completion[0]["content"] for completion in completions]
        return [
            asyncio.run(judged(tasks[name], text)) for name, text in zip(task, texts, strict=True)
        ]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.began = time.process_time()

        def on_step_end(self, *_: object, **__: object) -> None:
            spent["cpu_s"] += time.process_time() - self.began

    rows = [{"prompt": asyncio.run(opening(t)), "task": name} for name, t in tasks.items()]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(directory),
        reward_funcs=[reward],
        train_dataset=Dataset.from_list(rows),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=NUM_QUESTIONS * NUM_SAMPLES,
            num_generations=NUM_SAMPLES,
            max_completion_length=NUM_TOKENS,
            max_steps=steps,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            seed=seed,
        ),
    )
    trainer.train()
    trainer.save_model(str(to))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent", type=Path)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    spent = learn_with_trl(
        given.agent, given.model, steps=given.steps, seed=given.seed, to=given.to
    )
    print(json.dumps(spent))


if __name__ == "__main__":
    main()
