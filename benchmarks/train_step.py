"""The trainer's step against plain transformers, trl and itself: tokens per CPU-second and peak memory.

    python -m venv /tmp/trl && echo "$PWD/.venv/lib/python3.11/site-packages" > /tmp/trl/lib/python3.11/site-packages/project.pth
    /tmp/trl/bin/pip install --constraint constraints.txt trl==1.16.0
    python benchmarks/train_step.py [--trl /tmp/trl/bin/python] [--rounds 2] [--write]

SmolLM2-135M in bfloat16 with float32 master weights, one thread; the arms take turns, after trl. Alike: the work of
vs_trl.py, 4 prompts with 8 samples of 14 tokens each. Mixed: 16 sequences of log-normal lengths that fill
0.3 of a padded batch. Tokens are those of the sequences, neither padding nor shared ones counted less.
A step of ours is all of it, from groups to updated weights; forward and backward are named apart. Plain
transformers do forward and backward alone, with sdpa and with logits of trained tokens only.
Of trl, training without generation counts. Peaks are allocations beside weights and moments.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
import vs_trl
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.algorithms.batch import Batch, make_batch
from areal_sdk.algorithms.examples import Example, make_example
from areal_sdk.algorithms.packing import plan_rows
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.models import resolve_model
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from tests.toolbox.measured_memory import measure_bytes

NEW_TOKENS = 14
BUDGET = 4096
PADDED_ROWS = 16
FILL = 0.3
LONGEST, NUM_MIXED = 384, 16
Groups = Sequence[TrajectoryGroup]


@dataclass(frozen=True, slots=True)
class Run:
    cpu_s: float
    passes_s: float
    """Forward and backward alone."""


def trajectory(name: str, task: str, prompt: Sequence[int], answer: Sequence[int]) -> Trajectory:
    before, count = len(prompt), len(answer)
    return Trajectory(
        episode_id=name,
        task_id=task,
        tokens=(*prompt, *answer),
        loss_mask=(False,) * before + (True,) * count,
        logprobs=(0.0,) * before + (-2.0,) * count,
        versions=(-1,) * before + (0,) * count,
        temperatures=(1.0,) * (before + count),
        turn_of_token=(-1,) * before + (0,) * count,
        reward=vs_trl.reward_of(list(answer)),
    )


def alike(model: Path) -> Groups:
    rng, renderer = np.random.default_rng(0), Renderer.load(model)
    groups = []
    for task, question in enumerate(vs_trl.QUESTIONS):
        prompt = renderer.first(TemplateInput(tuple(vs_trl.messages(question)))).tokens
        siblings = [
            trajectory(
                f"{task}.{k}", str(task), prompt, rng.integers(100, 10_000, NEW_TOKENS).tolist()
            )
            for k in range(vs_trl.GROUP_SIZE)
        ]
        groups.append(TrajectoryGroup(str(task), str(task), tuple(siblings)))
    return groups


def mixed() -> Groups:
    """Groups of two without a common prefix, the lengths scaled to fill `FILL` of the longest."""
    rng = np.random.default_rng(1)
    drawn = np.exp(rng.standard_normal(NUM_MIXED))
    drawn[0] = LONGEST / FILL / 100
    lengths = np.clip(
        drawn / np.sort(drawn)[:-1].mean() * FILL * LONGEST * 0.8, 24, LONGEST
    ).astype(int)
    lengths[0] = LONGEST
    rows = [rng.integers(100, 10_000, length).tolist() for length in lengths]
    return [
        TrajectoryGroup(
            str(g),
            str(g),
            tuple(
                trajectory(f"{g}.{k}", str(g), row[:8], row[8:])
                for k, row in enumerate(rows[2 * g : 2 * g + 2])
            ),
        )
        for g in range(NUM_MIXED // 2)
    ]


def num_tokens(groups: Groups) -> int:
    return sum(len(t.tokens) for group in groups for t in group.trajectories)


def fill(groups: Groups) -> float:
    lengths = [len(t.tokens) for group in groups for t in group.trajectories]
    rows = [lengths[i : i + PADDED_ROWS] for i in range(0, len(lengths), PADDED_ROWS)]
    return sum(lengths) / sum(max(row) * len(row) for row in rows)


def examples(groups: Groups) -> list[Example]:
    made = [
        make_example(t, np.ones(len(t.tokens), np.float32)) for g in groups for t in g.trajectories
    ]
    return [example for example in made if example is not None]


class Ours:
    """A trainer of its own, once warm."""

    def __init__(self, model: Path, groups: Groups, **settings: Any) -> None:
        section = TrainerSection(device="cpu", tokens_per_microbatch=BUDGET, **settings)
        self.trainer = RankTrainer(TrainerSpec(model, trainer=section))
        self.groups = groups
        few = [TrajectoryGroup("w", "w", groups[0].trajectories[:2])]
        self.trainer.step(few, version=0)

    def __call__(self) -> Run:
        began = time.process_time()
        metrics = self.trainer.step(self.groups, version=0)
        took_s = time.process_time() - began
        assert metrics["num_updates"] == 1
        return Run(took_s, metrics["cpu_forward_s"] + metrics["cpu_backward_s"])


class Plain:
    """transformers, on one packed row or on padded ones."""

    def __init__(self, model: Path, groups: Groups, *, is_padded: bool = False) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._backward(packed([TrajectoryGroup("w", "w", groups[0].trajectories[:2])]))
        self.inputs = padded(groups) if is_padded else packed(groups)

    def __call__(self) -> Run:
        began = time.process_time()
        self._backward(self.inputs)
        took_s = time.process_time() - began
        return Run(took_s, took_s)

    def _backward(
        self, inputs: Sequence[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]
    ) -> None:
        self.model.zero_grad(set_to_none=True)
        for kept, where, targets_T in inputs:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(**kept, use_cache=False).logits
            rows_TV = logits.flatten(0, 1)[where].float()
            torch.autograd.backward(F.cross_entropy(rows_TV, targets_T))


def packed(groups: Groups) -> list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    made = examples(groups)
    [rows] = plan_rows([e.inputs for e in made], max_tokens=BUDGET, share=False)
    batches: list[Batch] = [make_batch(row, made, version=0) for row in rows]
    return [
        (
            {
                "input_ids": b.tokens_N[None],
                "position_ids": b.positions_N[None],
                "logits_to_keep": b.nodes_R,
            },
            b.rows_T,
            b.targets_T,
        )
        for b in batches
    ]


def padded(groups: Groups) -> list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    rows = [t for group in groups for t in group.trajectories]
    made = []
    for start in range(0, len(rows), PADDED_ROWS):
        part = rows[start : start + PADDED_ROWS]
        width = max(len(t.tokens) for t in part)
        tokens = torch.tensor([[*t.tokens, *[0] * (width - len(t.tokens))] for t in part])
        mask = torch.tensor([[i < len(t.tokens) for i in range(width)] for t in part])
        trained = torch.tensor(
            [[i < len(t.tokens) and t.loss_mask[i] for i in range(width)] for t in part]
        )
        where = torch.nonzero(trained[:, 1:].flatten())[:, 0]
        kept = {"input_ids": tokens[:, :-1], "attention_mask": mask[:, :-1].long()}
        made.append((kept, where, tokens[:, 1:].flatten()[where]))
    return made


def arms(model: Path) -> dict[str, tuple[Groups, Callable[[], Callable[[], Run]]]]:
    work, other = alike(model), mixed()
    print(f"alike: {num_tokens(work)} tokens; mixed: {num_tokens(other)}, fill {fill(other):.2f}")
    return {
        "alike: plain transformers, packed": (work, lambda: Plain(model, work)),
        "alike: ours, not shared": (work, lambda: Ours(model, work, share_prompts=False)),
        "alike: ours": (work, lambda: Ours(model, work)),
        "alike: ours, not shared, half recomputed": (
            work,
            lambda: Ours(model, work, share_prompts=False, activation_checkpointing="half"),
        ),
        "alike: ours, not shared, all recomputed": (
            work,
            lambda: Ours(model, work, share_prompts=False, activation_checkpointing="full"),
        ),
        "mixed: plain transformers, padded": (other, lambda: Plain(model, other, is_padded=True)),
        "mixed: ours": (other, lambda: Ours(model, other)),
    }


TRL = "alike: trl's step"


def trl(python: Path) -> float:
    """CPU-seconds of training, without generation, of one warm step."""
    command = [str(python), vs_trl.__file__, "--side", "trl", "--steps", "1"]
    command += ["--new-tokens", str(NEW_TOKENS)]
    root = str(Path(__file__).parents[1])
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": root,
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"trl failed:\n{done.stderr[-3000:]}")
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    return float(rows[-1]["training"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trl", type=Path, help="The Python of an environment that has trl.")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    model = resolve_model("smollm2")
    tried = arms(model)
    runs: dict[str, list[Run]] = {name: [] for name in (*tried, TRL)}
    peaks: dict[str, int] = {}
    for _ in range(options.rounds if options.trl else 0):  # first, as it needs 10 GB of its own
        took_s = trl(options.trl)
        runs[TRL].append(Run(took_s, took_s))
        print(TRL, took_s, flush=True)
    for number in range(options.rounds):
        for name, (_, make) in tried.items():
            arm = make()
            if not number:
                peaks[name] = measure_bytes(arm).peak
            runs[name].append(arm())
            print(name, runs[name][-1], peaks[name], flush=True)
            del arm
    text = report(tried, runs, peaks)
    print(text)
    if options.write:
        write_section(
            "train-step",
            "## A step of the trainer\n\n"
            f"`python benchmarks/train_step.py --rounds {options.rounds}{' --trl ...' * bool(options.trl)} --write`: "
            "the docstring of the program describes the arms, medians of the rounds, on a shared machine. "
            f'"Faster" is the CPU time of the reference in the same round by that of the arm.\n\n{text}',
        )


def report(
    tried: dict[str, tuple[Groups, Callable[[], Callable[[], Run]]]],
    runs: dict[str, list[Run]],
    peaks: dict[str, int],
) -> str:
    lines = []
    for name, found in runs.items():
        if not found:
            continue
        count = num_tokens(tried[name][0] if name in tried else tried["alike: ours"][0])
        lines.append(
            (
                name,
                f"{statistics.median(r.cpu_s for r in found):.2f}",
                f"{statistics.median(r.passes_s for r in found):.2f}",
                f"{count / statistics.median(r.cpu_s for r in found):.0f}",
                f"{peaks[name] / 1e6:.0f}" if name in peaks else "",
            )
        )
    header = ("arm", "CPU-s a step", "forward and backward", "tokens/CPU-s", "peak, MB")

    def faster(name: str, reference: str) -> str:
        pairs = zip(runs[reference], runs[name], strict=True)
        return f"{statistics.median(a.cpu_s / b.cpu_s for a, b in pairs):.2f}x"

    plain, off, on = list(tried)[:3]
    compared = [
        (off, plain),
        (on, off),
        ("mixed: ours", "mixed: plain transformers, padded"),
        *((arm, off) for arm in list(tried)[3:5]),
        *((arm, TRL) for arm in (off, on) if runs[TRL]),
    ]
    ratios = [(name, reference, faster(name, reference)) for name, reference in compared]
    return table(header, lines) + "\n\n" + table(("arm", "reference", "faster"), ratios)


if __name__ == "__main__":
    main()
