"""`serve --resume`: callers come back with the sessions of the server before."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_sdk.telemetry.ledger import DropReason
from tests.loop.learning_server import Caller, serving
from tests.loop.runs import SCRIPTED, finish, run_dir, start_command, told, wait_for_steps

KEY = "sk-admin-0123456789abcdef"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


async def test_sessions_of_the_server_before_are_refused_and_what_they_played_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_SDK_ADMIN_KEY", KEY)
    settings = {"rollout__group_size": 2, "rollout__batch": 2, "run__checkpoint_every": 1}
    arguments = (*SCRIPTED, "--set", "algorithm.name=grpo")
    with serving(tmp_path, *arguments, **settings) as (server, url, _):
        async with Caller(url, KEY) as caller:
            await caller.call_as_group(0, size=2)  # the first step
            old, _ = await caller.open_group(2)
        async with Caller(url, f"{KEY}/mine") as named:
            await named.ask(0)
        await asyncio.to_thread(wait_for_steps, server, tmp_path, 1)
        server.send_signal(signal.SIGINT)
        await asyncio.to_thread(finish, server)
    run = run_dir(tmp_path)
    (before,) = [e for e in run.list_episodes() if e.id == "admin/mine"]
    assert before.dropped is DropReason.CANCELLED

    port = url.removesuffix("/v1").rpartition(":")[2]
    resume = ("serve", "--resume", str(run.path), "--port", port, "--steps", "2", *SCRIPTED)
    server = start_command(*resume)
    try:
        assert server.stdout is not None
        assert told(server.stdout, r"serving tiny at (\S+)") == url
        for path, body in (("chat/completions", ASK), ("reward", {"reward": 1.0}), ("end", {})):
            refusal = await _refusal(f"{old['base_url']}/{path}", body, key=old["api_key"])
            assert "it was of a server before" in refusal
        async with Caller(url, f"{KEY}/mine") as named:  # a name of the server before is free
            await named.ask(0)
        async with Caller(url, KEY) as caller:
            await caller.call_as_group(1, size=2)
        await asyncio.to_thread(finish, server)
    finally:
        if server.poll() is None:
            server.kill()
    mine = [e for e in run.list_episodes() if e.id == "admin/mine"]
    assert len(mine) == 2
    assert before in mine
    assert sorted(e.step for e in run.list_episodes() if e.step is not None) == [1, 1, 2, 2]


async def _refusal(url: str, body: dict[str, Any], *, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(url, json=body) as reply,
    ):
        assert reply.status == 401
        message: str = (await reply.json())["error"]["message"]
        return message
