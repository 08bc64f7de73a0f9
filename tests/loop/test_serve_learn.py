"""`areal-sdk serve --learn`, as a user runs it: real processes, real clients, real rewards."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from areal_sdk.telemetry import Ledger
from tests.loop.runs import (
    finish,
    run_dir,
    start_command,
    steps_so_far,
    told,
    wait_for_steps,
)

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


@pytest.mark.slow
async def test_a_server_that_learns_stops_on_ctrl_c_and_goes_on(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(
        '[alice]\napi_key = "sk-alice-0123456789abcdef"\n'
        '[bob]\napi_key = "sk-bob-0123456789abcdef"\nrequests_per_minute = 1\n'
    )
    arguments = ("--users", str(users))
    with serving(tmp_path, *arguments, run__checkpoint_every=1) as (server, url, _):
        async with Caller(url, "sk-alice-0123456789abcdef") as alice:
            calling = asyncio.create_task(alice.keep_calling())
            await asyncio.to_thread(wait_for_steps, server, tmp_path, 3)
            async with Caller(url, "sk-bob-0123456789abcdef") as bob:
                await bob.call(0)
                with pytest.raises(openai.RateLimitError):
                    await bob.call(1)
            server.send_signal(signal.SIGINT)
            await asyncio.wait({calling}, timeout=60)
            await asyncio.gather(calling, return_exceptions=True)
        output = await asyncio.to_thread(finish, server)
    assert "is saved: no step is lost" in output or "a resumed run takes" in output
    run = run_dir(tmp_path)
    before = Ledger.restore(run.read_ledger() or {})
    taken = steps_so_far(tmp_path)
    server = start_command("serve", "--resume", str(run.path), "--port", "0", "--steps", "8")
    assert server.stdout is not None
    url = told(server.stdout, r"serving tiny at (\S+)")
    async with Caller(url, "sk-alice-0123456789abcdef") as alice:
        calling = asyncio.create_task(alice.keep_calling())
        await asyncio.wait({calling}, timeout=120)
        await asyncio.gather(calling, return_exceptions=True)
    output = await asyncio.to_thread(finish, server)
    steps = run.read_steps()
    assert [step["version"] for step in steps] == list(range(1, 9)), (taken, output)
    after = Ledger.restore(run.read_ledger() or {})
    assert after.started > before.started - 16
    assert after.trained >= 8 * 16 * 0.9


def test_callers_without_siblings_cannot_be_compared(tmp_path: Path) -> None:
    settings = {"run.dir": tmp_path, "algorithm.name": "grpo", "engine.dtype": "float32"}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = start_command("serve", "--learn", "--model", "tiny", "--port", "0", *options)
    output = finish(process, code=2)
    assert "running_baseline" in output
    assert "rollout.group_size" in output
    assert "Traceback" not in output


async def test_a_server_that_records_keeps_every_session(tmp_path: Path) -> None:
    settings = {"run.dir": tmp_path, "run.name": "run", "serve.idle_s": 0.2}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    server = start_command("serve", "--record", "--model", "tiny", "--port", "0", *options)
    assert server.stdout is not None
    url, key = told(server.stdout, r"serving tiny at (\S+)"), told(server.stdout, r"key: (\S+)")
    async with Caller(url, key) as caller:
        await caller.call(0)
    async with Caller(url, f"{key}/named") as caller:
        await caller.call(1)
    server.send_signal(signal.SIGINT)
    await asyncio.to_thread(finish, server)
    run = run_dir(tmp_path)
    shown = list(run.list_episodes())
    assert len(shown) == 2
    assert all(summary.reward is not None for summary in shown)
    record = run.find_episode("admin/named")
    assert record.split == "live"
    assert record.episode.turns[0].output_tokens
    assert "admin/named" in finish(start_command("inspect", str(run.path)))
