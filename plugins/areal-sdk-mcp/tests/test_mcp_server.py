"""Tools of real MCP servers: over stdio and HTTP, when they work and when they do not."""

import asyncio
import os
import select
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from areal_sdk import ConfigError, EpisodeError
from areal_sdk_mcp import McpServer

CALCULATOR = f"{sys.executable} {Path(__file__).parent / 'servers' / 'calculator.py'}"
START_S = 60.0


@pytest.fixture(params=["stdio", "http"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[McpServer]:
    """A calculator over each transport."""
    if request.param == "stdio":
        async with McpServer(command=CALCULATOR, start_timeout_s=START_S) as server:
            yield server
        return
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *CALCULATOR.split(), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await until_listening(port)
        url = f"http://127.0.0.1:{port}/mcp"
        async with McpServer(url=url, start_timeout_s=START_S) as server:
            yield server
    finally:
        process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def until_listening(port: int) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


async def test_tools_are_listed_and_called(server: McpServer) -> None:
    tools = {tool["function"]["name"]: tool["function"] for tool in server.tools}
    assert tools["add"]["description"] == "Add two numbers."
    assert set(tools["add"]["parameters"]["properties"]) == {"a", "b"}
    assert await server.call("add", '{"a": 1, "b": 2}') == "3"
    texts = await asyncio.gather(*(server.call("add", {"a": n, "b": 1}) for n in range(20)))
    assert texts == [str(n + 1) for n in range(20)]


async def test_what_the_model_gets_wrong_is_answered(server: McpServer) -> None:
    for name, arguments in [
        ("divide", '{"a": 1, "b": 0}'),
        ("add", '{"a": "x"}'),
        ("add", "not json"),
        ("add", "[1, 2]"),
        ("subtract", "{}"),
    ]:
        assert (await server.call(name, arguments)).startswith("error: "), (name, arguments)
    assert await server.call("add", '{"a": 1, "b": 2}') == "3"


async def test_only_some_tools_are_offered() -> None:
    async with McpServer(command=CALCULATOR, only=["add"], start_timeout_s=START_S) as server:
        assert [tool["function"]["name"] for tool in server.tools] == ["add"]
        assert await server.call("count", "{}") == "error: no tool 'count'; there are add"
    with pytest.raises(ConfigError, match="has no tool 'subtract'; it has add, count"):
        await McpServer(command=CALCULATOR, only=["subtract"], start_timeout_s=START_S).start()


async def test_a_server_that_dies_is_a_fault_with_its_last_words() -> None:
    async with McpServer(command=CALCULATOR, start_timeout_s=START_S) as server:
        with pytest.raises(
            EpisodeError, match=r"it ended with code 3; its last words: .*out of tea"
        ):
            await server.call("die", "{}")
        assert server.is_lost
        with pytest.raises(EpisodeError, match="it ended with code 3") as raised:
            await server.call("add", '{"a": 1, "b": 2}')
        assert raised.value.kind == "infrastructure"


async def test_a_server_that_hangs_is_a_fault_and_ends_at_once() -> None:
    async with McpServer(command=CALCULATOR, start_timeout_s=START_S, call_timeout_s=0.2) as server:
        with pytest.raises(EpisodeError, match=r"no answer to tools/call within 0.2 s") as raised:
            await server.call("hang", "{}")
        assert raised.value.kind == "infrastructure"
        pid = server.pid
        assert pid is not None
    assert ends(pid)


async def test_what_a_server_started_ends_with_it() -> None:
    async with McpServer(command=CALCULATOR, start_timeout_s=START_S) as server:
        pid = int(await server.call("child", "{}"))
        os.kill(pid, 0)  # it runs
    assert ends(pid)


def ends(pid: int) -> bool:
    """Whether the process is dead, or dies within seconds: a kill takes a moment."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5.0)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program-here", "'no-such-program-here' cannot be started"),
        ("true", "it ended with code 0; its last words: nothing"),
        ("sh -c 'echo sorry >&2; exit 4'", "ended with code 4; its last words: sorry"),
        ("sleep 60", r"no answer to initialize within 0.3 s"),
        ("yes", r"no answer to initialize within 0.3 s"),
        ("sh -c 'yes | tr -d \"\\n\"'", "it wrote a line of more than 16 MiB"),
    ],
)
async def test_a_command_that_is_no_server_is_a_fault(command: str, message: str) -> None:
    server = McpServer(
        command=command, start_timeout_s=0.3 if command in ("yes", "sleep 60") else START_S
    )
    async with asyncio.timeout(START_S):
        with pytest.raises(EpisodeError, match=message) as raised:
            await server.start()
    assert raised.value.kind == "infrastructure"
    assert server.pid is None


Handler = Callable[[web.Request], Any]


@pytest.fixture
async def at(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[Handler], Any]]:
    """Serves a handler as an MCP server's address would be."""
    runners: list[web.AppRunner] = []

    async def serve(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/mcp", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        return f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"

    yield serve
    for runner in runners:
        await runner.cleanup()


async def _overloaded(request: web.Request) -> web.Response:
    return web.Response(status=503, text="come back later")


async def _html(request: web.Request) -> web.Response:
    return web.Response(text="<html>", content_type="text/html")


async def _broken_json(request: web.Request) -> web.Response:
    return web.Response(text="{", content_type="application/json")


async def _list(request: web.Request) -> web.Response:
    return web.json_response([1])


async def _empty_stream(request: web.Request) -> web.Response:
    return web.Response(text=": hello\n\n", content_type="text/event-stream")


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (_overloaded, "answered 503: come back later"),
        (_html, "its stream ended without an answer"),
        (_broken_json, "gave no answer: JSONDecodeError"),
        (_list, r"answered 200: \[1\]"),
        (_empty_stream, "its stream ended without an answer"),
    ],
)
async def test_an_address_that_is_no_server_is_a_fault(
    at: Callable[[Handler], Any], handler: Handler, message: str
) -> None:
    with pytest.raises(EpisodeError, match=message) as raised:
        await McpServer(url=await at(handler)).start()
    assert raised.value.kind == "infrastructure"


async def test_nobody_at_the_address_is_a_fault() -> None:
    with pytest.raises(EpisodeError, match="gave no answer: ClientConnectorError"):
        await McpServer(url=f"http://127.0.0.1:{free_port()}/mcp").start()


@pytest.mark.parametrize("options", [{}, {"command": "a", "url": "http://b"}], ids=["none", "both"])
def test_a_server_is_a_command_or_an_address(options: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match="give the command that starts an MCP server, or the addr"
    ):
        McpServer(**options)  # type: ignore[arg-type]
