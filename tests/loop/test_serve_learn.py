"""`areal-sdk serve --learn`, as a user runs it: real processes, real clients, real rewards."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from areal_sdk.telemetry import Ledger
from tests.loop.runs import finish, run_dir, start_command, told

SETTINGS = {
    "run.checkpoint_every": 0,
    "run.name": "run",
    "rollout.batch": 16,
    "rollout.max_new_tokens": 16,
    "engine.dtype": "float32",
    "trainer.precision": "float32",
    "trainer.learning_rate": 1e-3,
    "trainer.warmup_steps": 1,
}


@contextmanager
def serving(
    directory: Path, *arguments: str, **settings: Any
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """A server that learns: its process, its address and its key."""
    values = SETTINGS | {"run.dir": str(directory)}
    values |= {key.replace("__", "."): value for key, value in settings.items()}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = ["serve", "--learn", "--model", "tiny", "--port", "0", *options, *arguments]
    server = start_command(*command)
    assert server.stdout is not None
    try:
        yield (
            server,
            told(server.stdout, r"serving tiny at (\S+)"),
            told(server.stdout, r"key: (\S+)"),
        )
    finally:
        if server.poll() is None:
            server.kill()


class Caller:
    """Rewards the share of bytes below 128 in what it is answered; a random model varies in it."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._client = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
        self._http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"})
        self.rewards: list[float] = []

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
        await self._http.close()

    async def call(self, number: int) -> None:
        answer = await self._client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "abcdefgh"[number % 8]}],
            extra_body={"return_token_ids": True},
        )
        extra = answer.choices[0].model_extra or {}
        tokens = extra["token_ids"]
        reward = sum(token < 128 for token in tokens) / max(1, len(tokens))
        async with self._http.post(
            f"{self._url}/reward", json={"reward": reward, "turn": answer.id}
        ) as reply:
            assert reply.status == 200, await reply.text()
        self.rewards.append(reward)

    async def keep_calling(self, *, lanes: int = 8) -> None:
        """Until the server goes away."""

        async def lane(first: int) -> None:
            for number in range(first, 100_000, lanes):
                await self.call(number)

        async with asyncio.TaskGroup() as group:
            for first in range(lanes):
                group.create_task(lane(first))


async def test_a_server_learns_from_those_who_call_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--steps", "30") as (server, url, key):
        async with Caller(url, key) as caller:
            calling = asyncio.create_task(caller.keep_calling())
            await asyncio.wait({calling}, timeout=200)
            assert calling.done(), "the server ends after its steps, and refuses calls then"
            await asyncio.gather(calling, return_exceptions=True)
            early, late = caller.rewards[:100], caller.rewards[-100:]
        output = await asyncio.to_thread(finish, server)
    assert "30 steps" in output
    assert sum(late) / 100 > sum(early) / 100 + 0.1, (sum(early) / 100, sum(late) / 100)
    run = run_dir(tmp_path)
    ledger = Ledger.restore(run.read_ledger() or {})
    assert ledger.trained >= 30 * 16 * 0.9
    steps = run.read_steps()
    assert [step["version"] for step in steps] == list(range(1, 31))
    assert max(step["batch/staleness_max"] for step in steps) <= 2
    assert any(step["batch/staleness_max"] > 0 for step in steps), "weights change under calls"
    episode = run.find_episode(next(iter(run.list_episodes())).id)
    assert episode.episode.task.id == "admin"
    shown = finish(start_command("inspect", str(run.path)))
    assert "30 steps" in shown
    assert key not in shown + (run.path / "config.toml").read_text()
