"""`McpServer`: one MCP server, its tools, and their calls."""

import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from areal_sdk import ConfigError, EpisodeError
from areal_sdk_mcp.protocol import (
    JSON,
    VERSION,
    CallRefusedError,
    Transport,
    fault,
    text_of,
    tool_of,
)
from areal_sdk_mcp.stdio import StdioTransport, kill_group

MAX_PAGES = 100


class McpServer:
    """The tools of a server: a command, which is started and ended here, or an address.

        async with McpServer(command="python server.py") as server:
            server.tools                                  # as `tools=` of a chat completion
            await server.call("add", '{"a": 1, "b": 2}')  # the text for the model

    A server that dies, hangs or cannot be reached raises an infrastructure fault: the episode is tried
    again. What the model gets wrong is answered with an error's text.
    """

    def __init__(
        self,
        *,
        command: str = "",
        url: str = "",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        start_timeout_s: float = 30.0,
        call_timeout_s: float = 30.0,
    ) -> None:
        """`only`: names of the tools to offer; empty: all."""
        if bool(command) == bool(url):
            raise ConfigError(
                f"command = {command!r}, url = {url!r}: give the command that starts an MCP server, or "
                "the address of one"
            )
        self.name = command or url
        self.tools: Sequence[JSON] = ()
        self._transport: Transport
        if command:
            self._transport = StdioTransport(command, env=env or {}, name=self.name)
        else:
            from areal_sdk_mcp.http import HttpTransport  # aiohttp, which `--help` need not load

            self._transport = HttpTransport(url, headers=headers or {}, name=self.name)
        self._only = only
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self.is_lost = False
        """Whether the server failed to answer: start another one."""

    @property
    def pid(self) -> int | None:
        """The process of a command that runs; its process group has the same number."""
        return self._transport.pid

    async def start(self) -> None:
        """Connect and list the tools. Whatever fails, nothing is left running."""
        try:
            await self._transport.start()
            hello = {
                "protocolVersion": VERSION,
                "capabilities": {},
                "clientInfo": {"name": "areal-sdk-mcp", "version": "1"},
            }
            await self._transport.request("initialize", hello, timeout_s=self._start_timeout_s)
            await self._transport.notify("notifications/initialized")
            self.tools = self._chosen(await self._list())
        except BaseException:
            await self.aclose()
            raise

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """The result as text. `arguments` as the model wrote them: JSON, or a mapping."""
        known = [tool["function"]["name"] for tool in self.tools]
        if name not in known:
            return f"error: no tool {name!r}; there are {', '.join(known) or 'none'}"
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return "error: the arguments are no JSON object"
        params = {"name": name, "arguments": given}
        try:
            return text_of(
                await self._transport.request("tools/call", params, timeout_s=self._call_timeout_s)
            )
        except CallRefusedError as exc:
            return f"error: {exc}"
        except EpisodeError:
            self.is_lost = True
            raise

    async def aclose(self) -> None:
        """End the command and its process group, or leave the address. Idempotent."""
        self.is_lost = True
        await self._transport.aclose()

    def kill(self) -> None:
        """Kill the process group of a command."""
        if (pid := self.pid) is not None:
            kill_group(pid)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _list(self) -> list[JSON]:
        found: list[JSON] = []
        params: JSON = {}
        for _ in range(MAX_PAGES):
            page = await self._transport.request(
                "tools/list", params, timeout_s=self._start_timeout_s
            )
            found += [tool_of(item) for item in page.get("tools") or ()]
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}
        raise fault(self.name, f"its list of tools has more than {MAX_PAGES} pages")

    def _chosen(self, found: Sequence[JSON]) -> Sequence[JSON]:
        names = [tool["function"]["name"] for tool in found]
        missing = [name for name in self._only if name not in names]
        if missing:
            raise ConfigError(
                f"MCP server {self.name!r} has no tool {missing[0]!r}; it has {', '.join(names)}"
            )
        if not found:
            raise ConfigError(f"MCP server {self.name!r} has no tools")
        return [t for t in found if not self._only or t["function"]["name"] in self._only]
