"""The process that serves a run from its beginning, and what is left of it at the end."""

import asyncio
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from view_runs import write_run

from areal_sdk_view.observer import View

TIMEOUT = aiohttp.ClientTimeout(total=60)


async def test_a_run_is_served_from_its_start_to_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, "guess-1")
    shutil.rmtree(path / "logs")
    observer = View()
    observer.on_run_start("guess-1", str(path), {})
    said = capfd.readouterr().err
    address = re.fullmatch(r"view: (http://127\.0\.0\.1:\d+/\?token=\S+)#run/guess-1\n", said)
    assert address, said
    async with aiohttp.ClientSession(
        timeout=TIMEOUT, cookie_jar=aiohttp.CookieJar(unsafe=True)
    ) as session:
        async with session.get(address[1]) as response:
            assert "areal-sdk view" in await response.text()
        async with session.get(f"http://{urlsplit(address[1]).netloc}/api/runs") as response:
            assert [row["run"] for row in await response.json()] == ["guess-1"]
    observer.on_run_end(str(path))
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(address[1])


RUN = """
import sys
from areal_sdk_view.observer import View

observer = View()
observer.on_run_start("guess-1", sys.argv[1], {})
sys.stdin.read()
"""


async def test_a_run_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    path = write_run(tmp_path, "guess-1")
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, str(path)),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert run.stderr is not None
    said = (await run.stderr.readline()).decode()
    address, _, token = said.split()[1].partition("#")[0].partition("/?token=")
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT, headers=headers) as session,
        session.get(f"{address}/api/stream") as stream,
    ):
        assert await stream.content.readline() == b": open\n"
        run.kill()
        await run.wait()
        assert await stream.content.read() == b"\n", "the stream ends with the server"


def test_a_run_that_never_began_ends_without_a_word(tmp_path: Path) -> None:
    View().on_run_end(str(tmp_path))
