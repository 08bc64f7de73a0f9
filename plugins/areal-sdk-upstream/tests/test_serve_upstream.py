"""`areal-sdk serve --upstream` as its users see it: the command, a provider, a client and the run directory."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from areal_sdk import Run

KEY = "sk-upstream-0123456789"
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@asynccontextmanager
async def provider(seen: list[dict[str, str]]) -> AsyncIterator[str]:
    """An OpenAI-shaped provider that says hello."""

    async def answer(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        message = {"role": "assistant", "content": "Hello."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "chatcmpl-1", "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def command(*arguments: str, cwd: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_sdk", *arguments),
        cwd=cwd,
        env=os.environ | {"AREAL_SDK_UPSTREAM_KEY": KEY},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_calls_pass_and_their_text_is_an_episode(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    async with asyncio.timeout(120), provider(seen) as url:
        server = await command("serve", "--upstream", url, "--port", "0", cwd=tmp_path)
        assert server.stdout is not None
        lines = ""
        while "curl" not in lines:
            line = (await server.stdout.readline()).decode()
            assert line, lines
            lines += line
        at, key = (found(pattern, lines) for pattern in (r"at (http://\S+)", r"key: (sk-\S+)"))
        headers = {"Authorization": f"Bearer {key}/e"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(f"{at}/chat/completions", json=ASK) as reply:
                assert reply.status == 200
                answer: Any = await reply.json()
                turn = reply.headers["x-areal-reply"]
            async with http.post(f"{at}/reward", json={"reward": 1.0, "turn": turn}) as reply:
                assert reply.status == 200
        server.send_signal(signal.SIGINT)
        await server.communicate()
    assert answer["choices"][0]["message"]["content"] == "Hello."
    assert seen[0]["Authorization"] == f"Bearer {KEY}"
    (run,) = (tmp_path / "runs").iterdir()
    (row,) = Run(run).episodes()
    assert row["num_turns"] == 1
    assert KEY not in lines
    assert not any(KEY in path.read_text(errors="replace") for path in run.rglob("*.toml"))


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


async def test_an_address_with_a_password_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    for url, named in (
        ("https://me:hunter2@api.example.com/v1", "AREAL_SDK_UPSTREAM_KEY"),
        ("api.example.com", "https://host/v1"),
    ):
        server = await command("serve", "--upstream", url, cwd=tmp_path)
        async with asyncio.timeout(120):
            said, _ = await server.communicate()
        assert server.returncode
        assert named in said.decode()
        assert b"hunter2" not in said
    assert not os.listdir(tmp_path)
