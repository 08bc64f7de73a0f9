"""Two ranks: what loading a model takes on each, and what their types do to logprobs.

python benchmarks/two_ranks.py [--write]

Loading: a model with the shapes of a 1B Llama, written on the spot as a sparse file of zeros, and held in
float32. The peak is that of anonymous memory, in which mapped files do not count, above what the process
had before. "The whole model": transformers loads it, and then it is split. A file of float32 is mapped
then, on a CPU; on a GPU all of it passes through the device.

Error: SmolLM2 in bfloat16, tokens that the embedded engine sampled; the mean difference of the trainer's
logprobs from the engine's, and from those of a float32 model. One rank casts weights by autocast, two
ranks gather layers that were cast before.
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tables import table, write_section
from torch.multiprocessing.spawn import spawn

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.loading import as_it_is, load_trained
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.sharding import shard
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models import resolve_model
from areal_sdk.models.checkpoint import write_json
from areal_sdk.trainer import Demonstration

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 16, 40, 40
POLL_S = 0.005


def write_zeros(directory: Path, stored: str) -> int:
    """A checkpoint of `SHAPE` whose file takes no room on the disk; returns its bytes in float32."""
    directory.mkdir()
    write_json(directory / "config.json", {**SHAPE, "dtype": stored})
    name_of_type, bytes_each = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}[stored]
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    entries, end = {}, 0
    for name, parameter in model.named_parameters():
        size = parameter.numel() * bytes_each
        offsets = [end, end + size]
        entries[name] = {
            "dtype": name_of_type,
            "shape": list(parameter.shape),
            "data_offsets": offsets,
        }
        end += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return end * 4 // bytes_each


def anonymous() -> int:
    """Bytes of this process's memory that no file holds."""
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * 1024


class Peak(threading.Thread):
    """Watches the memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.most = anonymous()
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            self.most = max(self.most, anonymous())
            time.sleep(POLL_S)

    def stop(self) -> int:
        self.is_over = True
        self.join()
        return max(self.most, anonymous()) - self.before


def on_two_ranks(action: Callable[..., None], *arguments: object) -> None:
    spawn(action, arguments, nprocs=2)  # type: ignore[no-untyped-call]


def join(rank: int, directory: Path) -> Ranks:
    torch.set_num_threads(1)
    meeting = f"file://{directory / 'meeting'}"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(hours=1)
    )
    return Ranks(rank, 2)


def measure_loading(rank: int, directory: Path, how: str) -> None:
    ranks = join(rank, directory)
    spec = TrainerSpec(directory / "model")
    warm = torch.ones(4, 4) @ torch.ones(4, 4)
    peak, began = Peak(), time.process_time()
    peak.start()
    if how == "whole":
        model = load_policy(spec.model_dir)
        shard(model, ranks, spec.trainer)
    else:
        model = load_trained(spec, ranks, as_it_is)
    taken = peak.stop()
    found = [taken, time.process_time() - began]
    (directory / f"{how}-{rank}.json").write_text(json.dumps(found))
    assert warm[0, 0] == 4
    assert not any(p.is_meta for p in model.parameters())
    dist.destroy_process_group()


def loading() -> str:
    rows, size = [], 0
    ways = (("whole", "the whole model, then split"), ("rows", "its own rows"))
    for stored, (how, name) in itertools.product(("float32", "bfloat16"), ways):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            size = write_zeros(directory / "model", stored)
            on_two_ranks(measure_loading, directory, how)
            found = [json.loads((directory / f"{how}-{r}.json").read_text()) for r in range(2)]
        peak, cpu_s = max(p for p, _ in found), max(s for _, s in found)
        rows.append((stored, name, f"{peak / 1e9:.2f}", f"{peak / size:.2f}", f"{cpu_s:.1f}"))
        print(*rows[-1], sep="  ", flush=True)
    header = ("the file", "a rank loads", "peak, GB", "of the whole in float32", "CPU-s a rank")
    return f"In float32 the model has {size / 1e9:.2f} GB.\n\n{table(header, rows)}"


async def sampled(model: Path) -> list[tuple[list[int], list[float]]]:
    """Sequences, and the engine's logprobs of their ends."""
    from areal_sdk.backends.local import LocalEngine, LocalOptions
    from areal_sdk.engine import GenerateRequest

    rng = np.random.default_rng(0)
    engine = LocalEngine(
        model, log_dir=Path(tempfile.mkdtemp()), options=LocalOptions(dtype="bfloat16")
    )
    await engine.start()
    rows = []
    for index in range(PROMPTS):
        prompt = rng.integers(100, 10_000, PROMPT_TOKENS).tolist()
        request = GenerateRequest(tuple(prompt), NEW_TOKENS, ignore_eos=True, request_id=str(index))
        result = await engine.generate(request)
        rows.append(([*prompt, *result.tokens], list(result.logprobs)))
    await engine.aclose()
    return rows


def logprobs(spec: TrainerSpec, ranks: Ranks, rows: list[list[int]]) -> list[list[float]]:
    """Logprobs of the last `NEW_TOKENS` of each row, one at a time."""
    trainer = RankTrainer(spec, ranks)
    asked = [
        Demonstration(tuple(row), tuple(index == at for index in range(len(row))))
        for row in rows
        for at in range(len(row) - NEW_TOKENS, len(row))
    ]
    flat = trainer.score(asked)
    return [flat[start : start + NEW_TOKENS] for start in range(0, len(flat), NEW_TOKENS)]


def score_on_rank(rank: int, directory: Path, spec: TrainerSpec, rows: list[list[int]]) -> None:
    found = logprobs(spec, join(rank, directory), rows)
    (directory / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def errors() -> str:
    model = resolve_model("smollm2")
    samples = asyncio.run(sampled(model))
    rows = [row for row, _ in samples]
    half = TrainerSpec(model, trainer=TrainerSection(precision="bfloat16"))
    exact = replace(half, trainer=TrainerSection(precision="float32"))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        on_two_ranks(score_on_rank, directory, half, rows)
        two = json.loads((directory / "0.json").read_text())
    references = {
        "the engine": [of_row for _, of_row in samples],
        "float32": logprobs(exact, Ranks(), rows),
    }
    lines = []
    for name, found in (("one", logprobs(half, Ranks(), rows)), ("two", two)):
        apart = [float(np.abs(np.subtract(found, r)).mean()) for r in references.values()]
        lines.append((name, *(f"{error:.4f}" for error in apart)))
        print(*lines[-1], sep="  ", flush=True)
    return table(("ranks", *(f"mean difference from {name}" for name in references)), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded, apart = loading(), errors()
    if options.write:
        write_section(
            "two-ranks",
            "## A model on two ranks\n\n`python benchmarks/two_ranks.py --write`: the docstring of the "
            f"program describes what is measured. {loaded}\n\nErrors of logprobs on SmolLM2 in bfloat16, "
            f"{PROMPTS} x {NEW_TOKENS} sampled tokens:\n\n{apart}",
        )


if __name__ == "__main__":
    main()
