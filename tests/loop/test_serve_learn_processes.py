"""`areal-sdk serve --learn --processes`, as a user runs it."""

import asyncio
import itertools
import os
import signal
from pathlib import Path

import aiohttp

from areal_sdk.gateway.processes.shard import Shard
from areal_sdk.telemetry import Ledger
from areal_sdk.telemetry.ledger import DropReason
from tests.loop.learning_server import Caller, serving
from tests.loop.runs import DEADLINE_S, SCRIPTED, children_of, finish, run_dir

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_server_learns_from_the_callers_of_all_processes_and_survives_a_kill(
    tmp_path: Path,
) -> None:
    arguments = ("--processes", "2", "--steps", "6", *SCRIPTED)
    with serving(tmp_path, *arguments) as (server, url, key):
        async with Caller(url, key) as caller, aiohttp.ClientSession() as http:
            for i in range(8):  # sessions that stay open, some of them at the victim
                headers = {"Authorization": f"Bearer {key}/open-{i}"}
                chat = f"{url}/chat/completions"
                async with http.post(chat, json=CHAT, headers=headers) as reply:
                    assert reply.status == 200
            (victim,) = children_of(server.pid, "gateway-1")
            os.kill(victim, signal.SIGKILL)
            num_lost = sum(
                Shard(0, 2, users=["admin"]).of_session(f"admin/open-{i}") for i in range(8)
            )
            calling = asyncio.create_task(caller.keep_calling())
            await asyncio.wait({calling}, timeout=200)
            assert calling.done(), "the server ends after its steps"
            await asyncio.gather(calling, return_exceptions=True)
        output = await asyncio.to_thread(finish, server)
    assert "6 steps" in output
    assert "its sessions are lost, another process takes its place" in output
    run = run_dir(tmp_path)
    ledger = Ledger.restore(run.read_ledger() or {})
    assert ledger.dropped[DropReason.ERROR_INFRASTRUCTURE] >= num_lost > 0
    assert ledger.started == ledger.trained + ledger.buffered + sum(ledger.dropped.values())
    trained = [e.id for e in run.list_episodes() if e.step is not None]
    assert len(trained) == len(set(trained)) == ledger.trained


async def test_a_reward_after_the_end_of_learning_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "hold-save").touch()  # the last checkpoint: callers are still served
    numbers = itertools.count()
    with serving(tmp_path, "--processes", "2", "--steps", "1", *SCRIPTED) as (server, url, key):
        async with Caller(url, key) as caller, aiohttp.ClientSession() as http:

            async def late() -> str:
                headers = {"Authorization": f"Bearer {key}/late-{next(numbers)}"}
                async with http.post(f"{url}/chat/completions", json=CHAT, headers=headers) as r:
                    assert r.status == 200, "the policy still answers"
                async with http.post(f"{url}/reward", json={"reward": 1}, headers=headers) as r:
                    return f"{r.status} {(await r.json()).get('error', {}).get('code')}"

            calling = asyncio.create_task(caller.keep_calling())
            async with asyncio.timeout(DEADLINE_S):
                while not (tmp_path / "in-save").exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(0.05)
                calling.cancel()
                await asyncio.wait({calling})
                # Names of both processes, which hear of the end soon.
                while {await late() for _ in range(8)} != {"503 learning_ended"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        (tmp_path / "hold-save").unlink()
        await asyncio.to_thread(finish, server)
