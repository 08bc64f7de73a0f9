"""`Player`: a process of another Python, which plays many episodes at the same time.

Orders and answers are lines of JSON. An order is `{"do": "play", "id": 3, ...}` or `{"do": "cancel", "id": 3}`. An answer
has the id of its order, and answers come in any order.
"""

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from areal_sdk.errors import InfrastructureError

JSON = dict[str, Any]
_MAX_LINE = 1 << 24
_END_S = 20.0
"""Seconds for the process to end what it has started, after its input has ended."""
_LAST_WORDS = 600


class Player:
    """One process, which `SharedServers` keeps. Its last words are part of each error."""

    def __init__(self, words: Sequence[str], *, title: str, env: Mapping[str, str]) -> None:
        """`words` is the command. `title` names the library that plays, for errors."""
        self._words = words
        self._title = title
        self._env = env
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[JSON]] = {}
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 - closed by aclose

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._written,
            env=self._env,
            limit=_MAX_LINE,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(), name=f"reader of {self._words[0]}")

    @property
    def is_lost(self) -> bool:
        return self._process.returncode is not None or self._reading.done()

    @property
    def pid(self) -> int:
        return self._process.pid

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
        """End the process, which ends what it has started. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        self._kill_group()
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._written.close()

    def kill(self) -> None:
        """End without an event loop."""
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)

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
                    message = f"the process of {self._title} ended{self._last_words()}"
                    waiting.set_exception(InfrastructureError(message))

    def _last_words(self) -> str:
        # The process writes at the end of the same file, so its place must not move.
        size = os.fstat(self._written.fileno()).st_size
        start = max(0, size - _LAST_WORDS)
        words = os.pread(self._written.fileno(), _LAST_WORDS, start).decode(errors="replace")
        return f"; it wrote: {words.strip()}" if words.strip() else ""
