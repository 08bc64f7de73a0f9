"""`areal-sdk serve --learn`, as a user runs it: real processes, real clients, real rewards."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from areal_sdk.telemetry import Ledger
from areal_sdk.telemetry.ledger import DropReason
from tests.loop.runs import (
    SCRIPTED_TRAINER,
    finish,
    inspect,
    refused,
    run_dir,
    start_command,
    steps_so_far,
    told,
    wait_for_steps,
)
from tests.loop.test_supervision import RESTARTED, kill_engine

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


@pytest.mark.long
async def test_a_server_learns_from_those_who_call_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--steps", "30") as (server, url, key):
        async with Caller(url, key) as caller:
            async with asyncio.timeout(200):  # the server ends after its steps
                await caller.keep_calling()
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
    shown = inspect(str(run.path))
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
            await asyncio.wait_for(calling, timeout=60)
        output = await asyncio.to_thread(finish, server)
    assert "is saved: no step is lost" in output or "a resumed run takes" in output
    run = run_dir(tmp_path)
    before = Ledger.restore(run.read_ledger() or {})
    taken = steps_so_far(tmp_path)
    server = start_command("serve", "--resume", str(run.path), "--port", "0", "--steps", "8")
    assert server.stdout is not None
    url = told(server.stdout, r"serving tiny at (\S+)")
    async with Caller(url, "sk-alice-0123456789abcdef") as alice:
        async with asyncio.timeout(120):
            await alice.keep_calling()
    output = await asyncio.to_thread(finish, server)
    steps = run.read_steps()
    assert [step["version"] for step in steps] == list(range(1, 9)), (taken, output)
    after = Ledger.restore(run.read_ledger() or {})
    assert after.started > before.started - 16
    assert after.trained >= 8 * 16 * 0.9


@pytest.mark.long
async def test_an_engine_that_dies_under_callers_is_back_and_they_are_learnt_from(
    tmp_path: Path,
) -> None:
    """The answer that the engine was sampling is an infrastructure fault, never a reward of zero."""
    with serving(tmp_path, *SCRIPTED_TRAINER, "--steps", "10") as (server, url, key):
        async with Caller(url, key) as caller:
            calling = asyncio.create_task(caller.keep_calling())
            await asyncio.to_thread(wait_for_steps, server, tmp_path, 3)
            await asyncio.to_thread(kill_engine, server.pid)
            await asyncio.wait_for(calling, timeout=200)  # the server ends after its steps
        output = await asyncio.to_thread(finish, server)
    assert RESTARTED in output
    assert "10 steps" in output
    run = run_dir(tmp_path)
    assert [step["version"] for step in run.read_steps()] == list(range(1, 11))
    ledger = Ledger.restore(run.read_ledger() or {})
    assert ledger.trained >= 10 * 16 * 0.9
    faults = ledger.dropped.get(DropReason.ERROR_INFRASTRUCTURE, 0)
    assert faults == caller.num_refused, "each call that met the fault, and no other"
    assert 0 < faults <= 8


async def test_a_server_learns_from_groups_that_are_opened(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    """Siblings are compared, one that nobody rewards is left out, one alone is kept untrained."""
    groups = {"algorithm__name": "grpo", "rollout__group_size": 4}
    with serving(tmp_path, *parts, "--steps", "6", **groups, serve__reward_wait_s=3) as (
        server,
        url,
        key,
    ):
        async with Caller(url, key) as caller:
            with pytest.raises(AssertionError, match="groups of 4"):
                await caller.open_group(3)
            await caller.call(0)  # alone
            await caller.call_as_group(0, size=4, num_silent=1)
            await caller.until_all_are_over()  # else six steps may be done before
            with suppress(aiohttp.ClientError, openai.APIError):  # until it goes away
                for number in range(1, 100):
                    await caller.call_as_group(number, size=4)
        output = await asyncio.to_thread(finish, server)
    assert "6 steps" in output
    run = run_dir(tmp_path)
    ledger = Ledger.restore(run.read_ledger() or {})
    assert ledger.trained == 6 * 16 - 1
    dropped = ledger.dropped
    silent = dropped.get(DropReason.ABSTAINED, 0) + dropped.get(DropReason.TRUNCATED, 0)
    assert silent == 1, "cut off at a limit or not, it is no zero"
    assert dropped[DropReason.GROUP_INCOMPLETE] >= 1, "the one that came alone"
    steps = run.read_steps()
    assert [step["batch/groups"] for step in steps] == [4] * 6
    assert sorted(step["batch/episodes"] for step in steps) == [15] + [16] * 5


@pytest.mark.slow
async def test_a_server_says_who_posted_a_wrong_reward(tmp_path: Path) -> None:
    keys = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob")}
    users = tmp_path / "users.toml"
    users.write_text("".join(f'[{name}]\napi_key = "{key}"\n' for name, key in keys.items()))
    arguments = ("--users", str(users), "--steps", "5")
    with serving(tmp_path, *arguments, rollout__batch=8) as (server, url, _):
        for number in range(40):
            name = ("alice", "bob")[number % 2]
            reward = 1e6 if number == 33 else float(number % 4 < 2)
            async with Caller(url, keys[name]) as caller:
                await caller.call(number, reward=reward)
        output = await asyncio.to_thread(finish, server)
    (note,) = [line for line in output.splitlines() if line.startswith("note: ")]
    assert note.startswith("note: bob: a reward of 1e+06 is far from the 0.5 of the 16 before it")
    steps = run_dir(tmp_path).read_steps()
    assert [step["train/num_outlying_sources"] for step in steps] == [0.0] * 4 + [1.0]


def test_callers_without_siblings_cannot_be_compared(tmp_path: Path) -> None:
    settings = {"run.dir": tmp_path, "algorithm.name": "grpo", "engine.dtype": "float32"}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    output = refused("serve", "--learn", "--model", "tiny", "--port", "0", *options)
    assert "running_baseline" in output
    assert "rollout.group_size" in output


async def test_a_server_that_records_keeps_every_session(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    settings = {"run.dir": tmp_path, "run.name": "run", "serve.idle_s": 0.2}
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = ("serve", "--record", "--model", "tiny", "--port", "0")
    server = start_command(*command, *options, *parts)
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
    assert "admin/named" in inspect(str(run.path))
