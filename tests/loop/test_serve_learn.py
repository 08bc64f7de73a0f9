"""`areal-sdk serve --learn`, as a user runs it: real processes, real clients, real rewards."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import aiohttp
import openai
import pytest

from areal_sdk.telemetry import Ledger
from areal_sdk.telemetry.ledger import DropReason
from tests.loop.learning_server import RESTARTED, Caller, kill_engine, serving
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
