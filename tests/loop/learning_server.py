"""A server that learns, its callers, and a way to kill its engine."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
from openai import AsyncOpenAI

from tests.loop.runs import (
    DEADLINE_S,
    children_of,
    start_command,
    told,
)

RESTARTED = "the engine was killed by SIGKILL: starting it again"


def kill_engine(pid: int) -> None:
    """Kill the engine of the main process `pid`, once it has one."""
    deadline = time.monotonic() + DEADLINE_S
    while not (engines := children_of(pid, "engine")):
        assert time.monotonic() < deadline, "it never had an engine"
        time.sleep(0.02)
    os.kill(engines[0], signal.SIGKILL)


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
        self.num_refused = 0
        """Calls that an engine fault met."""

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
        await self._http.close()
        await asyncio.sleep(0)  # a closed connection lets go of its socket in the loop's next turn

    async def call(self, number: int, *, reward: float | None = None) -> None:
        answer_id, earned = await _ask(self._client, number)
        reward = earned if reward is None else reward
        await self._post(f"{self._url}/reward", {"reward": reward, "turn": answer_id})
        self.rewards.append(reward)

    async def ask(self, number: int) -> None:
        """Ask without a reward."""
        await _ask(self._client, number)

    async def open_group(self, size: int) -> list[dict[str, str]]:
        url = f"{self._url.removesuffix('/v1')}/control/sessions"
        opened = await self._post(url, {"group_size": size}, status=201)
        siblings: list[dict[str, str]] = opened["sessions"]
        return siblings

    async def call_as_group(self, number: int, *, size: int, num_silent: int = 0) -> None:
        """Siblings answer the same; all but the last `num_silent` are rewarded."""
        siblings = await self.open_group(size)
        for index, sibling in enumerate(siblings):
            async with AsyncOpenAI(
                base_url=sibling["base_url"], api_key=sibling["api_key"], max_retries=0
            ) as client:
                _, reward = await _ask(client, number)
            if index < size - num_silent:
                await self._post(f"{sibling['base_url']}/reward", {"reward": reward})
                self.rewards.append(reward)
            else:
                await self._post(f"{sibling['base_url']}/end", {})

    async def until_all_are_over(self) -> None:
        """Nobody's reward is waited for any more."""
        async with asyncio.timeout(60.0):
            while await self._sessions():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)

    async def _sessions(self) -> list[Any]:
        async with self._http.get(f"{self._url.removesuffix('/v1')}/control/sessions") as reply:
            listed: list[Any] = (await reply.json())["sessions"]
            return listed

    async def _post(self, url: str, body: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
        async with self._http.post(url, json=body) as reply:
            assert reply.status == status, await reply.text()
            answer: dict[str, Any] = await reply.json()
            return answer

    async def keep_calling(self, *, lanes: int = 8) -> None:
        """Call until the server goes away."""

        async def lane(first: int) -> None:
            for number in range(first, 100_000, lanes):
                try:
                    await self.call(number)
                except openai.InternalServerError:
                    self.num_refused += 1

        # Each ends with its own error: a cancelled one may leave its connection open.
        await asyncio.gather(*map(lane, range(lanes)), return_exceptions=True)


async def _ask(client: AsyncOpenAI, number: int) -> tuple[str, float]:
    """The answer's id, and what it is worth."""
    answer = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "abcdefgh"[number % 8]}],
        extra_body={"return_token_ids": True},
    )
    tokens = (answer.choices[0].model_extra or {})["token_ids"]
    return answer.id, sum(token < 128 for token in tokens) / max(1, len(tokens))
