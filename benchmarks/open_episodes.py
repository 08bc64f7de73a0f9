"""The cost of the journal that lets unfinished episodes outlive a restart (`rollout.resume_episodes`).

    python benchmarks/open_episodes.py [--turns 20] [--tokens 200] [--episodes 20]

An agent talks to a scripted model through the real gateway over HTTP, in turn with and without a journal. CPU is that of
this process, the thread of the journal included; `main` is its event loop alone. Medians of the episodes.
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp

from areal_sdk.agent import EpisodeContext
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.journal import Journal
from areal_sdk.testing import Reply, ScriptedEngine
from areal_sdk.types import Task


async def agent(task: Task, context: EpisodeContext) -> float:
    """Plays `task.data["turns"]` turns, each with a tool result of 200 characters."""
    messages = [{"role": "user", "content": "x" * 400}]
    async with aiohttp.ClientSession() as http:
        for _ in range(task.data["turns"]):
            body = {"model": context.model, "messages": messages}
            async with http.post(f"{context.base_url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                said = (await answer.json())["choices"][0]["message"]
            messages += [said, {"role": "user", "content": "y" * 200}]
    return 1.0


async def measure(directory: Path, *, turns: int, tokens: int, episodes: int) -> None:
    model_dir = make_tiny_model(directory / "model")
    engine = ScriptedEngine(
        lambda request: Reply([97 + len(request.tokens) % 20] * tokens, stop=False),
        model_dir=model_dir,
        max_context=(tokens + 300) * (turns + 4),
        tokens_per_chunk=8,
    )
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()
    journal = Journal(directory / "open")
    journal.start()
    spent: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for number in range(2 * episodes + 2):
        name = ("without", "with")[number % 2]
        request = EpisodeRequest(f"{number}.0.0", Task(f"{number}", {"turns": turns}))
        kept = journal if name == "with" else None
        async with EpisodeRunner(agent, gateway=gateway, journal=kept) as runner:
            gc.collect()
            began = time.process_time(), time.thread_time()
            episode = await runner.run(request)
            ended = time.process_time(), time.thread_time()
        assert episode.reward == 1.0, episode.outcome
        if number >= 2:
            spent[name].append((ended[0] - began[0], ended[1] - began[1]))
    journal.close()
    size = sum(path.stat().st_size for path in journal.directory.iterdir()) / (episodes + 1)
    await gateway.aclose()
    for name, rows in spent.items():
        whole, main = (1e3 * statistics.median(part) / turns for part in zip(*rows, strict=True))
        print(f"{name:8} {whole:.3f} ms of CPU a turn, main {main:.3f}")
    print(f"{size / turns / tokens:.1f} bytes on disk a sampled token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sizes = {"turns": asked.turns, "tokens": asked.tokens, "episodes": asked.episodes}
        asyncio.run(measure(Path(directory), **sizes))


if __name__ == "__main__":
    main()
