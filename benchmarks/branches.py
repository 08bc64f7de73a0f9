"""The cost of a thinking model's long episode when every request leaves out earlier thoughts.

    python benchmarks/branches.py [--turns 100] [--against DIR] [--write]

The agent renders its own prompts with the model's chat template, as agents with token ids do. The template
drops the thoughts of earlier answers, so that no prompt goes on from a recorded turn: each turn forks.
`edited` is an agent on chat completions that clears the tool results before its last one. `told` is the
usual client: it sends the conversation, without thoughts, and the gateway keeps the tokens as sampled.
Prompts pass the real gateway over HTTP and its real renderer; the answers come from a script.

Each turn samples 400 tokens, 300 of them a thought, and the tool answers 150. `--against` runs the same
in another checkout of this repository. CPU-seconds are of the main process: `played` has the client and
the HTTP server in it, `afterwards` is the way from the last turn to what a rank gets (trajectories, the
line on disk, the message to the ranks). `planned` is what each rank does before its first forward.
"""

import argparse
import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from tables import table, write_section

from areal_sdk.algorithms.advantages.estimator import Estimate, Evidence
from areal_sdk.algorithms.presets import grpo
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.group_wire import decode_groups, encode_groups
from areal_sdk.fsdp.step.planning import Planner
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.models.tiny import CHAT_TEMPLATE, make_tiny_model
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.telemetry.episode_log import EpisodeWriter
from areal_sdk.testing import ScriptedEngine
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import Episode, Outcome, Task, Turn

THOUGHT, ANSWER, RESULT = 300, 100, 150
SAMPLED = THOUGHT + ANSWER
PROMPT = 500
TEMPLATE = CHAT_TEMPLATE.replace(
    'namespace(text=message.content or "")',
    'namespace(text=(message.content or "").split("</think>")[-1])',
).replace('<|im_start|>assistant\\n"', '<|im_start|>assistant\\n<think>"')

Message = dict[str, Any]
ROWS = {
    "sampled": "tokens sampled and trained",
    "stored": "tokens stored in the episode's turns",
    "trained": "tokens stored in its trajectories",
    "computed": "tokens that a rank computes",
    "json": "bytes of its line on disk",
    "pickle": "bytes of its pickle (to reward processes)",
    "wire": "bytes to each rank",
    "memory": "peak memory of all this, MB",
    "played": "CPU-s: played",
    "afterwards": "CPU-s: afterwards",
    "planned": "CPU-s: planned",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of an episode whose turns all fork.")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md")
    parser.add_argument("--json", action="store_true", help="the numbers alone")
    options = parser.parse_args()

    if options.json:
        print(json.dumps({name: asyncio.run(measure(name, options.turns)) for name in AGENTS}))
        return
    checkouts = [Path(__file__).parents[1], *([options.against] if options.against else [])]
    found = [run_in(checkout, options.turns) for checkout in checkouts]
    labels = ["now", "before"][: len(found)]
    header = ["", *(f"{name}, {label}" for name in AGENTS for label in reversed(labels))]
    rows = [
        [text, *(_number(f[name][key]) for name in AGENTS for f in reversed(found))]
        for key, text in ROWS.items()
    ]
    text = table(header, rows)
    print(text)
    if options.write:
        command = f"`python benchmarks/branches.py --turns {options.turns} --against DIR --write`"
        about = (
            f"{command}: {options.turns} turns that each sample {SAMPLED} tokens, {THOUGHT} of them "
            "a thought. The agent `rendered` renders its prompts itself, with a template that drops "
            "earlier thoughts; `edited` uses chat completions and clears earlier tool results; "
            "`told` tells the conversation without thoughts, which is no fork here. The docstring of "
            "the program describes the rows. `before` is the commit before turns that fork shared."
        )
        write_section("branches", f"## An episode whose turns all fork\n\n{about}\n\n{text}")


def run_in(checkout: Path, num_turns: int) -> dict[str, dict[str, float]]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--json", "--turns", str(num_turns)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


class Client:
    """One session of the gateway, over HTTP."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str, renderer: Renderer) -> None:
        self._http, self._url = http, url
        self._headers = {"Authorization": f"Bearer {key}"}
        self.renderer = renderer

    async def ask(self, path: str, **body: Any) -> Any:
        body = {"model": "policy", "max_tokens": SAMPLED, **body}
        async with self._http.post(
            f"{self._url}/{path}", json=body, headers=self._headers
        ) as response:
            assert response.status == 200, await response.text()
            return await response.json()


async def rendered(client: Client, messages: Sequence[Message]) -> str:
    prompt = client.renderer.first(TemplateInput(tuple(messages))).tokens
    reply = await client.ask("completions", prompt=list(prompt))
    return str(reply["choices"][0]["text"])


async def told(client: Client, messages: Sequence[Message]) -> str:
    reply = await client.ask("chat/completions", messages=list(messages))
    return str(reply["choices"][0]["message"]["content"])


async def edited(client: Client, messages: Sequence[Message]) -> str:
    last = len(messages) - 1
    cleared = [
        {**m, "content": "[cleared]"} if m["role"] == "user" and 0 < i < last else m
        for i, m in enumerate(messages)
    ]
    return await told(client, cleared)


AGENTS: dict[str, Callable[[Client, Sequence[Message]], Any]] = {
    "rendered": rendered,
    "edited": edited,
    "told": told,
}


async def play(name: str, num_turns: int, directory: Path) -> tuple[Turn, ...]:
    model_dir = make_tiny_model(directory)
    (model_dir / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    renderer = Renderer.load(model_dir)

    def script(request: Any) -> str:
        turn = len(request.tokens)
        return f"{turn:0{THOUGHT - 1}}</think>{turn:0{ANSWER - 1}}"

    engine = ScriptedEngine(script, model_dir=model_dir, max_context=2**20, keep_requests=1)
    gateway = Gateway(engine, renderer=renderer, model_name="policy")
    await engine.start()
    await gateway.start()
    session = gateway.sessions.open("episode")
    async with aiohttp.ClientSession() as http:
        client = Client(http, session.base_url(gateway.base_url), session.key, renderer)
        messages: list[Message] = [{"role": "user", "content": "?" * PROMPT}]
        for number in range(num_turns):
            text = await AGENTS[name](client, messages)
            said = text.rpartition("</think>")[2]
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": f"{number:0{RESULT}}"})
    turns = session.close()
    await gateway.aclose()
    await engine.aclose()
    return turns


async def measure(name: str, num_turns: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        began = time.process_time()
        turns = await play(name, num_turns, Path(scratch) / "model")
        played = time.process_time() - began
        gc.collect()
        timed = _after(turns, Path(scratch) / "timed")
        del turns
        tracemalloc.start()
        turns = await play(name, num_turns, Path(scratch) / "model")
        tracemalloc.reset_peak()
        _after(turns, Path(scratch) / "traced")
        memory = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
    return {"played": played, "memory": memory, **timed}


def _after(turns: tuple[Turn, ...], directory: Path) -> dict[str, float]:
    began = time.process_time()
    episode = Episode("episode", Task("task"), turns, Outcome.scored(1.0))
    trajectories = to_trajectories(episode)
    writer = EpisodeWriter(directory)
    writer.write(episode, trajectories=trajectories)
    writer.close()
    groups = [TrajectoryGroup("group", "task", trajectories)]
    payload, buffers = encode_groups(groups)
    afterwards = time.process_time() - began
    decoded = decode_groups(payload, buffers)
    began = time.process_time()
    algorithm, evidence = grpo(), Evidence()
    estimate = Estimate([[t.loss_mask.astype(np.float32) for t in decoded[0].trajectories]])
    planner = Planner(TrainerSection(tokens_per_microbatch=2**20), Ranks())
    plan = planner.plan(decoded, algorithm, estimate, evidence, version=1)
    planned = time.process_time() - began
    batches = [batch for minibatch in plan.minibatches for batch in minibatch.batches]
    [record] = directory.glob("*.episodes")
    return {
        "sampled": plan.num_terms,
        "stored": sum(len(turn.new_tokens) + len(turn.output_tokens) for turn in turns),
        "trained": sum(len(t.tokens) for t in trajectories),
        "computed": sum(len(batch.tokens_N) for batch in batches),
        "json": record.stat().st_size,
        "pickle": len(pickle.dumps(episode, protocol=pickle.HIGHEST_PROTOCOL)),
        "wire": len(json.dumps(payload)) + sum(len(bytes(buffer)) for buffer in buffers),
        "afterwards": afterwards,
        "planned": planned,
    }


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


if __name__ == "__main__":
    main()
