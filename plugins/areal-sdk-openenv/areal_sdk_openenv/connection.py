"""One session of an OpenEnv server: a WebSocket, which has an environment of its own on the server's side."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from areal_sdk import EpisodeError

JSON = Any
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
RETRY_S = 0.25
"""Seconds between two attempts to get a session of a server that has none free."""
NO_ROOM = "CAPACITY_REACHED"
REFUSED = ("VALIDATION_ERROR", "EXECUTION_ERROR")
"""Codes of an answer to an action that the environment does not take: no such field, no legal move."""


class RefusedError(Exception):
    """The environment did not take an action."""


class _NoRoomError(Exception):
    """All sessions of the server are in use."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation, as the server sent it."""

    observation: Mapping[str, JSON]
    reward: float | None
    done: bool


class Connection:
    """One session. A server that is lost or silent is a fault of infrastructure: the episode is tried again."""

    def __init__(
        self,
        url: str,
        *,
        call_timeout_s: float,
        wait_s: float,
        on_silence: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wait_s`: seconds to wait for a session while others hold all that the server has. `on_silence` is called
        when the server let a call wait too long."""
        self.url = url.rstrip("/")
        self._on_silence = on_silence
        self._call_timeout_s = call_timeout_s
        self._wait_s = wait_s
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def schema(self) -> JSON:
        """The schemas of actions and observations."""
        async with (
            self._naming_faults("its schema"),
            self._open_client().get(f"{self.url}/schema") as reply,
        ):
            reply.raise_for_status()
            return await reply.json()

    async def reset(self, parameters: Mapping[str, JSON]) -> Seen:
        """Begin an episode, once the server has a session free."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            try:
                return await self._reset(parameters)
            except RefusedError as exc:
                raise self._fault(
                    f"it refused to begin an episode with {dict(parameters)}: {exc}"
                ) from None
            except _NoRoomError as exc:
                await self._close_socket()
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._fault(
                        f"it had no session free within {self._wait_s:g} s ({exc}): raise max_concurrent_envs of the "
                        "server, or lower rollout.concurrency"
                    ) from None
                await asyncio.sleep(RETRY_S)

    async def step(self, action: Mapping[str, JSON]) -> Seen:
        """Act. `RefusedError`: the environment does not take this action, and waits for another one."""
        return self._seen("step", await self._call("step", action))

    async def aclose(self) -> None:
        """End the session, and with it the environment. Idempotent."""
        await self._close_socket()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _reset(self, parameters: Mapping[str, JSON]) -> Seen:
        if self._socket is None:
            address = self.url.replace("http", "ws", 1) + "/ws"
            async with self._naming_faults("a session"):
                self._socket = await self._open_client().ws_connect(
                    address, max_msg_size=MAX_MESSAGE_BYTES
                )
        return self._seen("reset", await self._call("reset", parameters))

    async def _call(self, kind: str, data: Mapping[str, JSON]) -> JSON:
        assert self._socket is not None, "reset comes first"
        async with self._naming_faults(f"an answer to {kind}"):
            with suppress(
                ConnectionError
            ):  # what the server said before it closed is still to be read
                await self._socket.send_json({"type": kind, "data": data})
            received = await self._socket.receive()
        if received.type is not aiohttp.WSMsgType.TEXT:
            raise self._fault(f"it closed the session instead of an answer to {kind}")
        try:
            answer = json.loads(received.data)
            found = answer["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._fault(f"its answer to {kind} is no OpenEnv message") from None
        if not isinstance(found, dict):
            raise self._fault(f"its answer to {kind} is no OpenEnv message")
        if answer.get("type") != "error":
            return found
        code, message = found.get("code"), _told(found)
        if code == NO_ROOM:
            raise _NoRoomError(message)
        if code in REFUSED:
            raise RefusedError(message)
        raise self._fault(f"it answered {kind} with {code}: {message}")

    @asynccontextmanager
    async def _naming_faults(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                yield
        except TimeoutError:
            if self._on_silence is not None:
                await self._on_silence()
            raise self._fault(f"no sign of {what} within {self._call_timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._fault(f"{what} failed: {exc or type(exc).__name__}") from None

    def _seen(self, kind: str, data: JSON) -> Seen:
        reward, observation = data.get("reward"), data.get("observation") or {}
        try:
            number = None if reward is None else float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not isinstance(observation, dict):
            raise self._fault(f"the observation in its answer to {kind} is no object")
        if number is not None and not math.isfinite(number):
            raise self._fault(f"the reward in its answer to {kind} is {reward!r}, no finite number")
        return Seen(observation, number, bool(data.get("done")))

    def _open_client(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession()
        return self._client

    async def _close_socket(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    def _fault(self, why: str) -> EpisodeError:
        return EpisodeError.infrastructure(f"OpenEnv server {self.url}: {why}")


def _told(error: Mapping[str, JSON]) -> str:
    """The message of an error, with the fields that it is about.

    >>> _told({"message": "Invalid message", "errors": [{"loc": ["move"], "msg": "Field required"}]})
    'Invalid message: move: Field required'
    """
    fields = (
        ": ".join([".".join(map(str, one.get("loc") or ())), str(one.get("msg"))])
        for one in error.get("errors") or ()
        if isinstance(one, dict)
    )
    return ": ".join([str(error.get("message")), *filter(None, ["; ".join(fields)])])
