"""The client side: sessions played turn by turn, and what the server spends on them."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from gateways.process import Server, ServerError

NUM_CLIENTS = 64
TURNS = 8
"""Turns of a session, where its length is not what is measured."""
SYSTEM = "You are a careful assistant who answers in few words. " * 12
QUESTION = (
    "Here is something to think about, number {}. " + "What follows from it is not clear. " * 36
)


class Conversation:
    """A client that plays the turns of one session."""

    def __init__(self, server: Server, number: int, http: aiohttp.ClientSession) -> None:
        seat = server.new_seat()
        self._url = f"{seat.url}/chat/completions"
        self._headers = {"Authorization": f"Bearer {seat.key}"} if seat.key else {}
        self._http = http
        self.num_turns = 0
        self.num_deltas = 0
        """Pieces of text that the last streamed answer came in."""
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION.format(number)},
        ]

    async def turn(self, *, stream: bool = False) -> float:
        """Play one turn; the seconds until the first byte of the answer."""
        self.num_turns += 1
        body = {"model": "m", "messages": self._messages, "stream": stream}
        begun = time.perf_counter()
        async with self._http.post(self._url, json=body, headers=self._headers) as reply:
            first = await reply.content.readany()
            waited = time.perf_counter() - begun
            raw = first + await reply.read()
        text = (self._streamed(raw) if stream else _whole(raw)) if reply.status == 200 else ""
        if not text:
            raise ServerError(f"it answered {reply.status}: {raw[:200].decode(errors='replace')}")
        self._messages.append({"role": "assistant", "content": text})
        self._messages.append({"role": "user", "content": f"And what about {len(self._messages)}?"})
        return waited

    def _streamed(self, raw: bytes) -> str:
        lines = [line[6:] for line in raw.splitlines() if line.startswith(b"data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        texts = [text for choice in choices if (text := choice["delta"].get("content"))]
        self.num_deltas = len(texts)
        return "".join(texts)


def _whole(raw: bytes) -> str:
    text: str = json.loads(raw)["choices"][0]["message"]["content"]
    return text


async def cost(
    server: Server,
    *,
    num_turns: int,
    num_requests: int,
    stream: bool,
    num_clients: int = NUM_CLIENTS,
    shares_connections: bool = True,
) -> float:
    """CPU microseconds a request, with that many clients at work.

    Their sessions share all connections, or each has one of its own.
    """
    left = iter(range(num_requests // num_turns))

    async def client(http: aiohttp.ClientSession) -> None:
        for number in left:
            async with AsyncExitStack() as stack:
                own = http
                if not shares_connections:
                    own = await stack.enter_async_context(aiohttp.ClientSession())
                conversation = Conversation(server, number, own)
                for _ in range(num_turns):
                    await conversation.turn(stream=stream)

    connector = aiohttp.TCPConnector(limit=max(100, num_clients))
    async with aiohttp.ClientSession(connector=connector) as http:
        await Conversation(server, -1, http).turn(stream=stream)  # what is done once is not counted
        before = server.cpu_s()
        await asyncio.gather(*(client(http) for _ in range(num_clients)))
        return (server.cpu_s() - before) / (num_requests // num_turns * num_turns) * 1e6


async def cost_by_turn(server: Server, *, num_sessions: int) -> dict[int, float]:
    """CPU microseconds a request at early and late turns of the same sessions."""
    async with aiohttp.ClientSession() as http:
        conversations = [Conversation(server, i, http) for i in range(num_sessions)]
        spent: dict[int, float] = {}
        for turn in range(1, 51):
            before = server.cpu_s()
            await asyncio.gather(*(c.turn() for c in conversations))
            spent[turn] = (server.cpu_s() - before) / num_sessions * 1e6
    return spent


async def latencies(
    server: Server, *, num_open: int, rate: float, num_requests: int, stream: bool
) -> list[float]:
    """Milliseconds to the first byte at a fixed offered rate, over `num_open` sessions at a time."""
    async with aiohttp.ClientSession() as http:
        playing = [Conversation(server, i, http) for i in range(num_open)]
        turns = [asyncio.Lock() for _ in playing]
        await playing[0].turn(stream=stream)
        waited: list[float] = []

        async def one(seat: int) -> None:
            async with turns[seat]:  # a client asks again once it was answered
                if playing[seat].num_turns == TURNS:
                    playing[seat] = Conversation(server, seat, http)
                waited.append(await playing[seat].turn(stream=stream) * 1e3)

        async with asyncio.TaskGroup() as tasks:
            begun = time.perf_counter()
            for i in range(num_requests):
                await asyncio.sleep(max(0.0, begun + i / rate - time.perf_counter()))
                tasks.create_task(one(i % num_open))
    return sorted(waited)


async def deltas_of_a_stream(server: Server) -> int:
    """Pieces of text that a streamed answer of `NUM_TOKENS` tokens comes in."""
    async with aiohttp.ClientSession() as http:
        conversation = Conversation(server, -1, http)
        await conversation.turn(stream=True)
        return conversation.num_deltas
