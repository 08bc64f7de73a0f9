"""The cost of new weights in flight for the local engine, and the gain and harm of keeping old KV.

    python benchmarks/weight_update.py [--model smollm2] [--dtype bfloat16] [--steps 1 10 100] [--write]

32 requests are in flight (4 prompts, 8 siblings each). After 20 tokens the weights change by so many
Adam-sized steps (each weight moves by lr = 2e-5 a step, in a random direction that it keeps); every
request then samples 20 more. `cost` is the CPU time of everything after the change beyond what the
same tokens take without it. `error` is |logprob - plain fp32 forward under the new weights| of
tokens sampled after the change; "before" is the same figure for tokens sampled before it, under the
old weights: the noise of the data type.
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file
from tables import table, write_section
from transformers import AutoModelForCausalLM

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.checkpoint import open_weights, weight_files
from areal_sdk.backends.local.sequence import Sequence as Running
from areal_sdk.engine import GenerateRequest
from areal_sdk.models import resolve_model

NUM_PROMPTS, NUM_SIBLINGS = 4, 8
PROMPT_TOKENS = 70
NUM_BEFORE, NUM_AFTER = 20, 20
LEARNING_RATE = 2e-5


@dataclass(frozen=True, slots=True)
class Outcome:
    copy_s: float
    after_s: float
    before: torch.Tensor
    """|dlogp| of the tokens sampled before the change."""
    after: torch.Tensor


def moved(directory: Path, target: Path, num_steps: int) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for file in weight_files(directory):
        for name, tensor in load_file(file).items():
            signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            tensors[name] = tensor.float() + num_steps * LEARNING_RATE * signs
    save_file(tensors, target)
    return target


def requests(vocab_size: int) -> list[GenerateRequest]:
    generator = random.Random(0)
    prompts = [
        tuple(generator.randrange(3, vocab_size) for _ in range(PROMPT_TOKENS))
        for _ in range(NUM_PROMPTS)
    ]
    return [
        GenerateRequest(prompt, NUM_BEFORE + NUM_AFTER, seed=seed, ignore_eos=True)
        for prompt in prompts
        for seed in range(NUM_SIBLINGS)
    ]


def run(
    directory: Path, dtype: str, new: Path | None, mode: str, old_model: torch.nn.Module
) -> Outcome:
    core = EngineCore(
        directory,
        LocalOptions.model_validate({"dtype": dtype, "device": "cpu", "kv_on_update": mode}),
    )
    sequences = [core.add(request) for request in requests(core.architecture.vocab_size)]
    logprobs: dict[Running, list[float]] = {sequence: [] for sequence in sequences}

    def step() -> None:
        for sampled in core.step():
            logprobs[sampled.sequence].append(sampled.logprob)

    while min(map(len, logprobs.values())) < NUM_BEFORE:
        step()
    num_before = {sequence: len(sequence.output) for sequence in sequences}
    weights = None if new is None else open_weights(new, core.architecture)
    started = time.process_time()
    core.update_weights(1, weights)
    copied = time.process_time()
    while core.has_work:
        step()
    after_s = time.process_time() - copied

    new_model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    if new is not None:
        new_model.load_state_dict(load_file(new), strict=False)
        new_model.tie_weights()
    before, after = [], []
    for sequence in sequences:
        split = num_before[sequence]
        sampled = torch.tensor(logprobs[sequence])
        before.append((sampled - rescored(old_model, sequence)).abs()[:split])
        after.append((sampled - rescored(new_model, sequence)).abs()[split:])
    return Outcome(copied - started, after_s, torch.cat(before), torch.cat(after))


@torch.inference_mode()
def rescored(model: torch.nn.Module, sequence: Running) -> torch.Tensor:
    tokens = torch.tensor([[*sequence.prompt.tolist(), *sequence.output]])
    scores: torch.Tensor = model(tokens).logits[0].log_softmax(-1)
    output = torch.tensor(sequence.output)
    return scores[len(sequence.prompt) - 1 : -1].gather(1, output[:, None]).squeeze(1)


def figures(errors: torch.Tensor) -> str:
    return f"{errors.median():.4f} / {errors.quantile(0.99):.3f}"


def measure(directory: Path, dtype: str, steps: Sequence[int]) -> str:
    old_model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rows = []
    with TemporaryDirectory() as scratch:
        plain = run(directory, dtype, None, "recompute", old_model)
        for num_steps in steps:
            new = moved(directory, Path(scratch) / "new.safetensors", num_steps)
            for mode in ("recompute", "keep"):
                outcome = run(directory, dtype, new, mode, old_model)
                cost_s = outcome.after_s - plain.after_s
                rows.append(
                    [
                        num_steps,
                        mode,
                        f"{outcome.copy_s:.2f}",
                        f"{cost_s:+.2f} ({cost_s / plain.after_s:+.0%})",
                        figures(outcome.before),
                        figures(outcome.after),
                    ]
                )
                print(rows[-1], flush=True)
    header = ["steps", "KV", "copy, CPU-s", "cost after, CPU-s"]
    return table([*header, "error before, median / p99", "error after, median / p99"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = measure(resolve_model(args.model), args.dtype, args.steps)
    print(text)
    if args.write:
        steps = " ".join(map(str, args.steps))
        command = f"python benchmarks/weight_update.py --model {args.model} --dtype {args.dtype} --steps {steps} --write"
        title = f"## Engine: new weights with 32 requests in flight, {args.model}, {args.dtype}"
        write_section(
            f"weight-update-{args.model}-{args.dtype}",
            f"{title}\n\n`{command}`, one thread.\n\n{text}",
        )


if __name__ == "__main__":
    main()
