"""A server as a child process: a line of JSON each way. It is in a process group, which ends with it."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
from collections import deque
from collections.abc import Mapping

from areal_sdk_mcp.protocol import JSON, fault, notification_of, reply_to, request_of, result_of

STOP_GRACE_S = 1.0
"""Seconds from the end of the server's input to SIGKILL: time for a server to end by itself."""
MAX_LINE_BYTES = 16 * 1024 * 1024
NUM_LAST_WORDS = 5
"""Number of lines of stderr that an error quotes."""


class StdioTransport:
    """One child process. Its output that is no JSON, and its stderr, are kept for errors."""

    def __init__(self, command: str, *, env: Mapping[str, str], name: str) -> None:
        self._command = command
        self._env = env
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._waiting: dict[int, asyncio.Future[JSON]] = {}
        self._num_requests = 0
        self._last_words: deque[str] = deque(maxlen=NUM_LAST_WORDS)
        self._end = ""
        """The reason why there are no more answers; empty while there are."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *shlex.split(self._command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **self._env},
                start_new_session=True,  # a group of its own, which can be killed as a whole
                limit=MAX_LINE_BYTES,
            )
        except OSError as exc:
            raise fault(self._name, f"{self._command!r} cannot be started: {exc}") from exc
        self._readers = [
            asyncio.create_task(self._read_answers(self._process), name=f"answers of {self._name}"),
            asyncio.create_task(self._read_words(self._process), name=f"stderr of {self._name}"),
        ]

    async def request(self, method: str, params: JSON, *, timeout_s: float) -> JSON:
        self._num_requests += 1
        number = self._num_requests
        answer: asyncio.Future[JSON] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(request_of(number, method, params))
                message = await answer
        except TimeoutError:
            raise fault(self._name, f"no answer to {method} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
            answer.cancel()
        return result_of(message, server=self._name, method=method)

    async def notify(self, method: str) -> None:
        await self._write(notification_of(method))

    async def aclose(self) -> None:
        """End the server and all that is in its group. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None, "it was started with a pipe"
        try:
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await process.wait()
        finally:  # also when this is cancelled, and when the server left children behind
            kill_group(process.pid)
            # Its pipes too: `wait` waits for their end, which does not come while one is full, or
            # while a process that left the group holds it open.
            for descriptor in range(3):
                process._transport.get_pipe_transport(descriptor).close()  # type: ignore[attr-defined]
            for reader in self._readers:
                reader.cancel()
            self._fail_all("it was closed")
        await asyncio.gather(*self._readers, return_exceptions=True)
        await process.wait()

    async def _write(self, message: JSON) -> None:
        if self._process is None or self._end:
            raise fault(self._name, self._end or "it was closed")
        assert self._process.stdin is not None, "it was started with a pipe"
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except (OSError, RuntimeError) as exc:  # RuntimeError: uvloop, of a pipe that was closed
            await self._until_its_end_is_known()
            raise fault(self._name, self._end or f"it reads no more: {exc!r}") from exc

    async def _until_its_end_is_known(self) -> None:
        """Wait for the end of a server that reads no more: its last output says why it ended."""
        reader = self._readers[0]
        if asyncio.current_task() is not reader:
            await asyncio.wait([reader], timeout=STOP_GRACE_S)

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "it was started with a pipe"
        try:
            while line := await process.stdout.readline():
                await self._take(line)
            # The pipe may end before the process: its exit code says more, if it comes.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await process.wait()
            await asyncio.sleep(0)  # its last words were read by now
            self._fail_all(self._how_it_ended(process.returncode))
        except ValueError:  # a line without an end
            self._fail_all(f"it wrote a line of more than {MAX_LINE_BYTES >> 20} MiB")

    async def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):  # servers print
            self._last_words.append(line.decode(errors="replace").rstrip()[:500])
            return
        if (reply := reply_to(message)) is not None:
            await self._write(reply)
            return
        waiting = self._waiting.get(message.get("id", -1))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def _read_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None, "it was started with a pipe"
        while chunk := await process.stderr.read(8192):  # no lines: one may be without an end
            words = chunk.decode(errors="replace").splitlines()
            self._last_words.extend(line[:500] for line in words if line.strip())

    def _how_it_ended(self, code: int | None) -> str:
        words = "; ".join(self._last_words) or "nothing"
        how = "closed its output" if code is None else f"ended with code {code}"
        return f"it {how}; its last words: {words}"

    def _fail_all(self, why: str) -> None:
        self._end = self._end or why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(fault(self._name, why))
                waiting.exception()  # it may have nobody who waits any more


def kill_group(pid: int) -> None:
    """Kill what is left of the process group; it may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
