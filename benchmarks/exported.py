"""Success of exported directories, in the local engine and in plain transformers, beside their cards' figures.

    python benchmarks/exported.py [--only sft lora rl] [--keep DIR] [--write]

1. sft of SmolLM2 on 88 of 192 calls of a calculator, 11 steps at the default rate, sampled in float32.
2. The same with an adapter of rank 16, in 12 steps, sampled in bfloat16.
3. Reinforcement learning of the tiny model (`examples/agents/math_with_retries.py`), 12 steps.

Each run is exported without options, and sft once more with `--dtype bfloat16`. transformers loads the directory, renders each
request with `apply_chat_template` and generates; only the calls are read from its text by a parser of ours, as transformers has none.
With `--keep` a run that is there is not repeated.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.plain_calculator import rows
from aiohttp import web
from tables import table, write_section

from areal_sdk.gateway.tool_calls.plain import PlainCalls
from areal_sdk.tool_calls import ToolCall

ROOT = Path(__file__).parents[1]
CALCULATOR = Path(__file__).parent / "agents" / "plain_calculator.py"
RETRIES = ROOT / "examples" / "agents" / "math_with_retries.py"

_SFT = ("sft", "ROWS", "--model", "smollm2", "--agent", str(CALCULATOR))
_SMALL = ("--set", "finetune.batch=8", "--set", "eval.tasks=48", "--set", "engine.max_context=512")
RUNS = {
    "sft": (*_SFT, *_SMALL, "--steps", "11", "--set", "engine.dtype=float32"),
    "lora": (*_SFT, *_SMALL, "--steps", "12", "--set", "trainer.lora.rank=16"),
    "rl": (
        *("train", str(RETRIES), "--config", str(RETRIES.with_suffix(".toml"))),
        *("--steps", "12", "--set", "sft.steps=80"),
    ),
}
EXPORTS: dict[str, dict[str, tuple[str, ...]]] = {
    "sft": {"": (), "bfloat16": ("--dtype", "bfloat16")},
    "lora": {"": ()},
    "rl": {"": ()},
}


def command(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "areal_sdk", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"areal-sdk {' '.join(arguments)}\n{done.stderr[-2000:]}")
    return done.stdout


class Transformers:
    """A model directory behind the chat endpoint, with nothing but transformers inside."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    async def chat(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        tools = body.get("tools") or []
        ids = self.tokenizer.apply_chat_template(
            body["messages"],
            tools=tools or None,
            add_generation_prompt=True,
            return_dict=False,
            return_tensors="pt",
        )
        told = body.get("max_tokens") or body.get("max_completion_tokens") or 4
        sampled = self.model.generate(
            ids, max_new_tokens=told, do_sample=not tools, **({} if tools else {"top_k": 0})
        )
        text = self.tokenizer.decode(sampled[0, ids.shape[1] :], skip_special_tokens=True)
        parser = PlainCalls(tools)
        events = [*parser.feed(text), *parser.finish()] if tools else []
        calls = [
            {
                "id": f"call{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(e for e in events if isinstance(e, ToolCall))
        ]
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else text}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "x",
                "choices": [choice],
            }
        )


async def in_transformers(exported: Path, agent: Path, *options: str) -> float:
    """Success of `agent` on its held-out tasks, with the model in `exported`."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", Transformers(exported).chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        arguments = ("eval", str(agent), "--base-url", address, "--model", "x", "--json")
        key = ("--api-key", "none", "--set", "eval.max_concurrency=2")
        told = await asyncio.to_thread(command, exported.parent, *arguments, *key, *options)
    finally:
        await runner.cleanup()
    (numbers,) = json.loads(told).values()
    return float(numbers["success"])


def measure(directory: Path, name: str) -> list[list[str]]:
    """The rows of one run: its figures, and those of each of its exports."""
    run = directory / "runs" / name
    if not (run / "checkpoints" / "final" / "config.json").is_file():
        words = [str(directory / "rows.jsonl") if word == "ROWS" else word for word in RUNS[name]]
        command(directory, *words, "--set", f"run.name={name}", "--set", f"run.dir={run.parent}")
    found = []
    for kind, options in EXPORTS[name].items():
        exported = directory / f"exported-{name}{kind and '-' + kind}"
        if not exported.exists():
            command(directory, "export", str(run), "--to", str(exported), *options)
        card = (exported / "README.md").read_text()
        line = next(line for line in card.splitlines() if line.startswith("| eval |"))
        tasks, before, in_run, files = [cell.strip() for cell in line.split("|")[2:6]]
        weights = next(line for line in card.splitlines() if line.startswith("| weights |"))
        dtype = weights.rstrip(" |").rpartition(", ")[2]
        is_rl = name == "rl"
        options = ("--samples", "20") if is_rl else ("--num-tasks", tasks)
        agent = RETRIES if is_rl else CALCULATOR
        success = asyncio.run(in_transformers(exported, agent, *options))
        found.append([name, dtype, tasks, before, in_run, files, f"{success:.3f}"])
    return found


HEADER = ("run", "exported", "tasks", "before", "in the run", "card: these files", "transformers")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        directory = (options.keep or Path(scratch)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row) for row in rows(192)]
        (directory / "rows.jsonl").write_text("\n".join(lines) + "\n")
        measured = [row for name in options.only for row in measure(directory, name)]
    text = table(HEADER, measured)
    print(text)
    if options.write:
        write_section(
            "exported",
            "## Exported models\n\n`python benchmarks/exported.py --write`: success of directories that "
            "`areal-sdk export` wrote, in the run, in the local engine (the card's figure) and in plain "
            f"transformers. One seed.\n\n{text}",
        )


if __name__ == "__main__":
    main()
