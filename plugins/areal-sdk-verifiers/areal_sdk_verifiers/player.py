"""`Player`: a process of the Python that has verifiers, which plays many episodes at the same time."""

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from areal_sdk.errors import InfrastructureError

JSON = dict[str, Any]
INSIDE = Path(__file__).parent / "inside"
_MAX_LINE = 1 << 24
_END_S = 20.0
"""Seconds for a process to end its tool servers after its input has ended."""
_LAST_WORDS = 600
_MOST_EPISODES = 2000
"""Episodes of one process. verifiers keeps a client for each address, and each session has its own."""


def script_words(python: str, mode: str) -> list[str]:
    """The command that lists or plays tasks."""
    return [python, str(INSIDE / "play.py"), mode]


def environment_of_player(places: Sequence[str]) -> dict[str, str]:
    """The variables of this process, with the directories of tasksets and of the harness."""
    found = [str(INSIDE), *places, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(found)}


class Player:
    """One process. `shared_player` returns the running one."""

    def __init__(self, python: str, places: Sequence[str]) -> None:
        self._python = python
        self._places = places
        self._numbers = itertools.count()
        self._num_played = 0
        self._waiting: dict[int, asyncio.Future[JSON]] = {}
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 - closed by aclose

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *script_words(self._python, "serve"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._written,
            env=environment_of_player(self._places),
            limit=_MAX_LINE,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(), name=f"reader of {self._python}")

    @property
    def takes_more(self) -> bool:
        is_running = self._process.returncode is None and not self._reading.done()
        return is_running and self._num_played < _MOST_EPISODES

    async def play(self, order: JSON) -> JSON:
        """The answer to an order. `InfrastructureError`: the process ended before."""
        number = next(self._numbers)
        self._num_played += 1
        answer: asyncio.Future[JSON] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({"do": "play", "id": number, **order})
            return await answer
        except asyncio.CancelledError:
            self._send({"do": "cancel", "id": number})
            raise
        finally:
            del self._waiting[number]

    async def aclose(self) -> None:
        """End the process, and with it its tool servers. Idempotent."""
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
                    waiting.set_exception(InfrastructureError(self._how_it_ended()))

    def _how_it_ended(self) -> str:
        end = self._written.seek(0, os.SEEK_END)
        self._written.seek(max(0, end - _LAST_WORDS))
        words = self._written.read().decode(errors="replace").strip()
        return f"the process of verifiers ended{f'; it wrote: {words}' if words else ''}"


class _Shared:
    """The processes of one Python in one event loop, which closes its asynchronous generators when it ends."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.player: Player | None = None
        self.holders: list[AsyncGenerator[Player, None]] = []


_Places = tuple[str, ...]
_of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, _Places], _Shared]]"
_of_loop = WeakKeyDictionary()


async def shared_player(python: str, places: _Places) -> Player:
    """The running process for such tasks: started if there is none, or if the last one has ended or played enough."""
    of_this = _of_loop.setdefault(asyncio.get_running_loop(), {})
    shared = of_this.setdefault((python, places), _Shared())
    async with shared.lock:  # episodes that begin together start one process
        if shared.player is None or not shared.player.takes_more:
            shared.player = Player(python, places)
            await shared.player.start()
            # A former one still plays its last episodes, so it is kept until the end.
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
