"""Our step against trl's `GRPOTrainer`, on the same work: CPU-seconds of all processes.

    pip install trl==1.16.0
    python benchmarks/vs_trl.py [--rounds 3] [--steps 4] [--new-tokens 14]

Both sides: SmolLM2-135M, the same 4 prompts, 8 samples each, exactly N new tokens a sample (the end
of turn is ignored), all of them trained, the same reward, one AdamW step a batch, float32 master
weights with bfloat16 autocast, one thread a process. Ours includes the weight copy to the engine.
The sides take turns, each in processes of its own; what is compared is the median step.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import table, write_section

NUM_PROMPTS, GROUP_SIZE = 4, 8
QUESTIONS = tuple(
    f"What is {a}+{b}?" for a, b in ((4127, 3308), (905, 6641), (7719, 284), (63, 5120))
)
EXAMPLE = [
    {
        "role": "system",
        "content": "Use the calculator.\n\nTools:\ncalculator(expression: string): "
        "Evaluate an arithmetic expression.\nTo call a tool, reply with just the call.",
    },
    {"role": "user", "content": "What is 11+22?"},
    {"role": "assistant", "content": 'calculator("11+22")'},
    {"role": "user", "content": "Result: 33"},
    {"role": "assistant", "content": "33"},
]


def messages(question: str) -> list[dict[str, str]]:
    return [*EXAMPLE, {"role": "user", "content": question}]


def reward_of(token_ids: list[int]) -> float:
    """Any deterministic function of the sampled tokens that varies within a group."""
    return sum(math.sin(token) for token in token_ids) / len(token_ids)


async def ours(steps: int, new_tokens: int, *, share_prompts: bool) -> list[dict[str, float]]:
    from areal_sdk.backends.local import LocalEngine, LocalOptions
    from areal_sdk.config import TrainerSection
    from areal_sdk.engine import GenerateRequest
    from areal_sdk.fsdp.spec import TrainerSpec
    from areal_sdk.fsdp.trainer import FSDPTrainer
    from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
    from areal_sdk.models import resolve_model
    from areal_sdk.process.family import used_by
    from areal_sdk.trajectory import Trajectory, TrajectoryGroup

    model = resolve_model("smollm2")
    renderer = Renderer.load(model)
    logs = Path(tempfile.mkdtemp())
    engine = LocalEngine(model, log_dir=logs, options=LocalOptions(dtype="bfloat16"))
    trainer = FSDPTrainer(
        TrainerSpec(model, trainer=TrainerSection(share_prompts=share_prompts, learning_rate=1e-6)),
        log_dir=logs,
    )
    await asyncio.gather(engine.start(), trainer.start())
    pids = {"engine": engine.child.pid, "trainer": trainer.children[0].pid, "main": os.getpid()}

    async def sample(prompt: tuple[int, ...], name: str) -> Trajectory:
        result = await engine.generate(
            GenerateRequest(prompt, new_tokens, ignore_eos=True, request_id=name)
        )
        before, count = len(prompt), len(result.tokens)
        assert count == new_tokens
        return Trajectory(
            episode_id=name,
            task_id=name.split(".")[0],
            tokens=prompt + result.tokens,
            loss_mask=(False,) * before + (True,) * count,
            logprobs=(0.0,) * before + result.logprobs,
            versions=(-1,) * before + result.versions,
            temperatures=(1.0,) * (before + count),
            turn_of_token=(-1,) * before + (0,) * count,
            reward=reward_of(list(result.tokens)),
        )

    rows = []
    for step in range(steps + 1):
        start = {name: (used_by(pid) or (0.0,))[0] for name, pid in pids.items()}
        began = time.monotonic()
        prompts = [renderer.first(TemplateInput(tuple(messages(q)))).tokens for q in QUESTIONS]
        samples = await asyncio.gather(
            *(sample(p, f"{i}.{k}") for i, p in enumerate(prompts) for k in range(GROUP_SIZE))
        )
        groups = [
            TrajectoryGroup(str(i), str(i), tuple(s for s in samples if s.task_id == str(i)))
            for i in range(NUM_PROMPTS)
        ]
        sampled = {name: (used_by(pid) or (0.0,))[0] for name, pid in pids.items()}
        metrics = await trainer.step(groups, version=step, timeout_s=300)
        assert metrics["num_trained"] == NUM_PROMPTS * GROUP_SIZE * new_tokens, metrics
        await engine.update_weights(await trainer.publish(step + 1))
        end = {name: (used_by(pid) or (0.0,))[0] for name, pid in pids.items()}
        rows.append(
            {
                "total": sum(end[n] - start[n] for n in pids),
                "generation": sampled["engine"] - start["engine"],
                "training": end["trainer"] - start["trainer"],
                "weights": end["engine"] - sampled["engine"],
                "main": end["main"] - start["main"],
                "wall": time.monotonic() - began,
                "trained": metrics["num_trained"],
            }
        )
    await asyncio.gather(engine.aclose(), trainer.aclose())
    return rows[1:]  # the first warms up


def trl(steps: int, new_tokens: int) -> list[dict[str, float]]:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from areal_sdk.models import resolve_model

    torch.set_num_threads(1)
    directory = resolve_model("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rows: list[dict[str, float]] = []
    trained: list[int] = []

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        trained.append(sum(len(ids) for ids in completion_ids))
        return [reward_of(ids) for ids in completion_ids]

    sampling: list[float] = []

    class Trainer(GRPOTrainer):
        def _generate(self, prompts: list[object]) -> object:
            began = time.process_time()
            generated = super()._generate(prompts)
            sampling.append(time.process_time() - began)
            return generated

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.cpu, self.wall = time.process_time(), time.monotonic()

        def on_step_end(self, *_: object, **__: object) -> None:
            wall, total = time.monotonic() - self.wall, time.process_time() - self.cpu
            generation = sampling[-1]
            rows.append(
                {
                    "total": total,
                    "wall": wall,
                    "generation": generation,
                    "training": total - generation,
                }
            )

    data = [{"prompt": messages(q)} for _ in range(steps + 1) for q in QUESTIONS]
    trainer = Trainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list(data),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=NUM_PROMPTS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=new_tokens,
            generation_kwargs={"min_new_tokens": new_tokens},
            max_steps=steps + 1,
            learning_rate=1e-6,
            beta=0.0,
            bf16=True,
            use_cpu=True,
            gradient_checkpointing=False,
            logging_steps=1000,
            save_strategy="no",
            report_to=[],
            shuffle_dataset=False,
            seed=0,
        ),
    )
    trainer.train()
    expected = NUM_PROMPTS * GROUP_SIZE * new_tokens
    assert trained[1:] == [expected] * steps, f"trl trained {trained} tokens, not {expected}"
    return rows[1:]


def in_process(side: str, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """One side's steps, in a fresh process with one thread."""
    command = [sys.executable, __file__, "--side", side]
    command += ["--steps", str(arguments.steps), "--new-tokens", str(arguments.new_tokens)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    rows: list[dict[str, float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


SIDES = ("ours", "ours, prompts not shared", "trl")


def run_side(side: str, steps: int, new_tokens: int) -> list[dict[str, float]]:
    if side == "trl":
        return trl(steps, new_tokens)
    return asyncio.run(ours(steps, new_tokens, share_prompts=side == "ours"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=14)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments.side, arguments.steps, arguments.new_tokens)))
        return
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(arguments.rounds):
        for side in SIDES:
            rows[side] += in_process(side, arguments)
    write_section("vs_trl", report(rows, arguments))


def report(rows: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> str:
    def median(side: str, name: str) -> float:
        return statistics.median(row[name] for row in rows[side])

    theirs = median("trl", "total")
    lines = [
        (
            side,
            f"{median(side, 'total'):.2f}",
            f"{theirs / median(side, 'total'):.2f}x",
            *(
                f"{median(side, part):.2f}" if part in rows[side][0] else ""
                for part in ("generation", "training", "weights", "main")
            ),
        )
        for side in SIDES
    ]
    header = ("side", "CPU-s a step", "trl / this", "generation", "training", "weights", "main")
    text = table(header, lines)
    print(text)
    tokens = NUM_PROMPTS * GROUP_SIZE * arguments.new_tokens
    return (
        f"## One GRPO step against trl 1.16.0\n\n"
        f"`python benchmarks/vs_trl.py --rounds {arguments.rounds} --steps {arguments.steps} "
        f"--new-tokens {arguments.new_tokens}`: SmolLM2-135M. A step has {NUM_PROMPTS} prompts x "
        f"{GROUP_SIZE} samples with {arguments.new_tokens} new tokens each, so {tokens} trained tokens on "
        f"both sides. Each process has one thread, and the sides run in turn. Figures are medians of "
        f"{arguments.rounds * arguments.steps} steps.\n\n{text}\n"
    )


if __name__ == "__main__":
    main()
