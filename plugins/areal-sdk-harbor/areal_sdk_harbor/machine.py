"""`Machine`: the sandbox of one episode, in which commands run one after another and files stay."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk_harbor import resident
from areal_sdk_harbor.tree import Tree
from areal_sdk_sandbox import Limits, Sandbox

JSON = Any
_MARGIN_S = 30.0
"""Seconds beyond its own deadline in which an order is answered, on a busy machine too."""
_MAX_LINE = 1 << 28
_KEEP_KB = 64
"""Output of a command that is kept: its end."""
_CODE = Path(resident.__file__).read_text(encoding="utf-8")


class MachineEndedError(Exception):
    """The sandbox ended, or answers no more. Only programs that run in it can do that, if it has started."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of a command in the sandbox."""

    code: int
    output: str
    """The last 64 KB of stdout and stderr."""
    written: int
    """Bytes of output in all."""
    is_late: bool
    """Whether the command was ended at its deadline."""


class Machine:
    """A sandbox in which commands run one after another. `Machine.started(...)` starts one."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        running: "asyncio.Task[Any]",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._running = running

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        limits: Limits,
        *,
        writable: Sequence[str],
        readable: Sequence[str] = (),
        reaches: tuple[str, int] | None = None,
    ) -> AsyncIterator["Machine"]:
        """A sandbox that runs until the end of the block. `SandboxError`: it cannot start."""
        sandbox = Sandbox(limits, isolation="bubblewrap", readable=readable, writable=writable)
        ours, theirs = socket.socketpair()
        words = ["python3", "-I", "-S", "-c", _CODE, str(theirs.fileno())]
        run = sandbox.run(words, pass_fds=[theirs.fileno()], reaches=reaches)
        running = asyncio.create_task(run, name="sandbox of a Harbor task")
        reader, writer = await asyncio.open_connection(sock=ours, limit=_MAX_LINE)
        try:
            yield cls(reader, writer, running)
        finally:
            writer.close()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            theirs.close()

    async def put(self, directory: str, tree: Tree) -> None:
        """Write files below `directory`."""
        files = [[name, mode, base64.b64encode(data).decode()] for name, mode, data in tree.files]
        folders, links = list(tree.folders), list(tree.links)
        await self._ask("put", directory=directory, folders=folders, files=files, links=links)

    async def run(
        self, words: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float
    ) -> CommandEnd:
        """Run `words` to their end or the deadline. What they started in the background goes on."""
        answer = await self._ask(
            "run",
            words=list(words),
            cwd=cwd,
            env=dict(env),
            timeout_s=timeout_s,
            keep_kb=_KEEP_KB,
            within_s=timeout_s,
        )
        return CommandEnd(answer["code"], answer["output"], answer["written"], answer["late"])

    async def end_others(self) -> None:
        """End all processes that commands left."""
        await self._ask("end_others")

    async def clear(self, directory: str) -> None:
        await self._ask("clear", directory=directory)

    async def read(self, path: str, *, most: int) -> str | None:
        """The text of a file; None if there is none."""
        content: str | None = (await self._ask("read", path=path, most=most))["content"]
        return content

    async def _ask(self, do: str, *, within_s: float = 0.0, **order: JSON) -> dict[str, JSON]:
        """The answer to an order. `OrderError`: it could not be carried out."""
        self._writer.write(json.dumps({"do": do, **order}).encode() + b"\n")
        answering = asyncio.create_task(self._reader.readline())
        try:
            await asyncio.wait(
                {answering, self._running},
                timeout=within_s + _MARGIN_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not answering.done() and self._running.done():
                end = self._running.result()  # raises SandboxError if the sandbox did not start
                raise MachineEndedError(f"the sandbox {end if end.limit else 'was ended'}")
            if not answering.done():
                raise MachineEndedError("the sandbox answers no more")
            answer: dict[str, JSON] = json.loads(answering.result())
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        if "error" in answer:
            raise OrderError(str(answer["error"]))
        return answer


class OrderError(Exception):
    """An order could not be carried out: a full disk, a path that is too long."""
