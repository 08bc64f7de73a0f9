"""`Player`: a process of the Python that has Inspect. It plays many episodes at the same time, each in a fork."""

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from areal_sdk.errors import InfrastructureError

JSON = dict[str, Any]
_SCRIPT = Path(__file__).parent / "inside" / "play.py"
_MAX_LINE = 1 << 24
_END_S = 20.0
"""Seconds for the process to end its forks after its input has ended."""
_LAST_WORDS = 600


def script_words(python: str, mode: str) -> list[str]:
    """The command that lists or plays samples."""
    return [python, str(_SCRIPT), mode]


class Player:
    """One process. `shared_player` returns the running one."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[JSON]] = {}
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 - closed by aclose

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *script_words(self._python, "serve"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._written,
            limit=_MAX_LINE,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(), name=f"reader of {self._python}")

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None and not self._reading.done()

    async def play(self, order: JSON) -> JSON:
        """The answer to an order. `InfrastructureError`: a process ended before."""
        number = next(self._numbers)
        answer: asyncio.Future[JSON] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({"do": "play", "id": number, **order})
            told = await answer
        except asyncio.CancelledError:
            self._send({"do": "cancel", "id": number})
            raise
        finally:
            del self._waiting[number]
        if "died" in told:
            raise InfrastructureError(f"{told['died']}{self._last_words()}")
        return told

    async def aclose(self) -> None:
        """End the process, which ends its forks. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._written.close()

    def _send(self, order: JSON) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                told = json.loads(line)
                waiting = self._waiting.get(told["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    message = f"the process of Inspect ended{self._last_words()}"
                    waiting.set_exception(InfrastructureError(message))

    def _last_words(self) -> str:
        end = self._written.seek(0, os.SEEK_END)
        start = max(0, end - _LAST_WORDS)
        # The process writes at the end of the same file, so its place must not move.
        words = os.pread(self._written.fileno(), _LAST_WORDS, start).decode(errors="replace")
        return f"; it wrote: {words.strip()}" if words.strip() else ""


class _Shared:
    """The process of one Python in one event loop, which closes its asynchronous generators when it ends."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.player: Player | None = None
        self.holders: list[AsyncGenerator[Player, None]] = []


_of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]]"
_of_loop = WeakKeyDictionary()


async def shared_player(python: str) -> Player:
    """The running process of this Python: started if there is none, or if the last one has ended."""
    of_this = _of_loop.setdefault(asyncio.get_running_loop(), {})
    shared = of_this.setdefault(python, _Shared())
    async with shared.lock:  # episodes that begin together start one process
        if shared.player is None or not shared.player.is_running:
            shared.player = Player(python)
            await shared.player.start()
            shared.holders.append(_held(shared.player))
            await anext(shared.holders[-1])
        return shared.player


async def close_shared_players() -> None:
    """End those of this event loop now."""
    for shared in _of_loop.pop(asyncio.get_running_loop(), {}).values():
        for holder in shared.holders:
            await holder.aclose()


async def _held(player: Player) -> AsyncGenerator[Player, None]:
    try:
        yield player
    finally:
        await player.aclose()
