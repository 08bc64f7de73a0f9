"""What the gateway costs: CPU a request, latency added, memory a session.

    python benchmarks/gateway.py [--model smollm2] [--rounds 3] [--write]

Three servers, each a process of its own over the same trivial engine (32 tokens at once): the
gateway; `bound`, a plain aiohttp server that renders, encodes the whole prompt and detokenises, which
is the least that an exact gateway without memory can do; and `echo`, which answers a constant.
Cost is the server's own CPU time, read from the kernel, so a busy machine stretches it less than it
stretches a clock. Rounds are interleaved; ratios are medians of per-round ratios.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web
from tables import table, write_section
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.templates import ChatTemplate
from areal_sdk.models import resolve_model
from areal_sdk.types import FinishReason, WeightUpdate

NUM_TOKENS = 32
NUM_CLIENTS = 64
SYSTEM = "You are a careful assistant who answers in few words. " * 12
QUESTION = (
    "Here is something to think about, number {}. " + "What follows from it is not clear. " * 36
)


class InstantEngine(InferenceEngine):
    """Says the same tokens to everybody, one chunk a token, without delay."""

    def __init__(self, model_dir: Path) -> None:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        config = json.loads((model_dir / "config.json").read_text())
        self.end = config["eos_token_id"]
        self.end = self.end[0] if isinstance(self.end, list) else self.end
        self.said = tokenizer.encode("The answer is not clear. " * 20).ids[: NUM_TOKENS - 1]
        self._info = EngineInfo(
            str(model_dir), 32768, tokenizer.get_vocab_size(), stop_tokens=(self.end,)
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> int:
        return 0

    async def start(self) -> None: ...

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        for token in self.said:
            yield GenerateChunk((token,), (-1.0,), (0,))
        yield GenerateChunk((self.end,), (-1.0,), (0,), FinishReason.STOP, self.end)

    async def update_weights(self, update: WeightUpdate) -> None: ...

    async def aclose(self) -> None: ...


async def serve_gateway(model_dir: Path, num_sessions: int) -> list[str]:
    gateway = Gateway(InstantEngine(model_dir), model_dir=model_dir, model_name="m")
    await gateway.start()
    sessions = [gateway.sessions.open(str(i)) for i in range(num_sessions)]
    return [session.base_url(gateway.base_url) for session in sessions]


async def serve_bound(model_dir: Path, num_sessions: int) -> list[str]:
    engine = InstantEngine(model_dir)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    template = ChatTemplate.load(model_dir)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        text = template.render(body["messages"], add_generation_prompt=True)
        prompt = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        decoder = DecodeStream(skip_special_tokens=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        said: list[str] = []
        async for chunk in engine.stream(GenerateRequest(prompt, NUM_TOKENS)):
            text = decoder.step(tokenizer, chunk.tokens[0]) or ""
            if body["stream"]:
                if not response.prepared:
                    await response.prepare(request)
                delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
                await response.write(b"data: " + orjson.dumps(delta) + b"\n\n")
            said.append(text)
        if body["stream"]:
            await response.write(b"data: [DONE]\n\n")
            return response
        message = {"role": "assistant", "content": "".join(said)}
        return web.Response(body=orjson.dumps({"choices": [{"message": message}]}))

    return [await _listen(answer)] * num_sessions


async def serve_echo(model_dir: Path, num_sessions: int) -> list[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=b'{"choices": [{"message": {"role": "assistant"}}]}')

    return [await _listen(answer)] * num_sessions


async def _listen(answer: Callable[[web.Request], Any]) -> str:
    app = web.Application(client_max_size=2**25)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


ROLES = {"gateway": serve_gateway, "bound": serve_bound, "echo": serve_echo}


async def serve(role: str, model_dir: Path, num_sessions: int) -> None:
    sys.stdout.write(json.dumps(await ROLES[role](model_dir, num_sessions)) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Server:
    """One of the servers, in its own process."""

    def __init__(self, role: str, model_dir: Path, num_sessions: int) -> None:
        command = [sys.executable, __file__, "--serve", role, "--model", str(model_dir)]
        self._process = subprocess.Popen(
            [*command, "--sessions", str(num_sessions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.urls: list[str] = json.loads(self._process.stdout.readline())
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def cpu_s(self) -> float:
        """CPU time that the server's process has used."""
        fields = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(fields[0]) / 1e9

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def new_url(self) -> str:
        self._next += 1
        return self.urls[self._next - 1]


class Conversation:
    """A client that plays the turns of one session."""

    def __init__(self, server: Server, number: int, http: aiohttp.ClientSession) -> None:
        self._url = f"{server.new_url()}/chat/completions"
        self._http = http
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION.format(number)},
        ]

    async def turn(self, *, stream: bool = False) -> float:
        """Play one turn; the seconds until the first byte of the answer."""
        body = {"model": "m", "messages": self._messages, "stream": stream}
        begun = time.perf_counter()
        async with self._http.post(self._url, json=body) as reply:
            first = await reply.content.readany()
            waited = time.perf_counter() - begun
            raw = first + await reply.read()
            assert reply.status == 200, raw
        self._messages.append(_message(raw, stream=stream))
        self._messages.append({"role": "user", "content": f"And what about {len(self._messages)}?"})
        return waited


def _message(raw: bytes, *, stream: bool) -> dict[str, Any]:
    if not stream:
        message: dict[str, Any] = json.loads(raw)["choices"][0]["message"]
        return message
    lines = [line[6:] for line in raw.splitlines() if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return {"role": "assistant", "content": text}


async def cost(server: Server, *, num_turns: int, num_requests: int, stream: bool) -> float:
    """CPU microseconds a request, with `NUM_CLIENTS` clients at work."""
    left = iter(range(num_requests // num_turns))

    async def client(http: aiohttp.ClientSession) -> None:
        for number in left:
            conversation = Conversation(server, number, http)
            for _ in range(num_turns):
                await conversation.turn(stream=stream)

    async with aiohttp.ClientSession() as http:
        before = server.cpu_s()
        await asyncio.gather(*(client(http) for _ in range(NUM_CLIENTS)))
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


async def latencies(server: Server, *, rate: float, num_requests: int, stream: bool) -> list[float]:
    """Milliseconds to the first byte at a fixed offered rate."""
    async with aiohttp.ClientSession() as http:
        conversations = [Conversation(server, i, http) for i in range(NUM_CLIENTS)]
        waited: list[float] = []

        async def one(conversation: Conversation) -> None:
            waited.append(await conversation.turn(stream=stream) * 1e3)

        async with asyncio.TaskGroup() as tasks:
            begun = time.perf_counter()
            for i in range(num_requests):
                await asyncio.sleep(max(0.0, begun + i / rate - time.perf_counter()))
                tasks.create_task(one(conversations[i % NUM_CLIENTS]))
    return waited


def costs_section(model_dir: Path, *, rounds: int, num_requests: int) -> str:
    rows = []
    for stream in (False, True):
        for num_turns in (1, 8):
            pairs = []
            for _ in range(rounds):
                pair = []
                for role in ("gateway", "bound"):
                    with Server(role, model_dir, num_requests // num_turns + 1) as server:
                        run = cost(
                            server, num_turns=num_turns, num_requests=num_requests, stream=stream
                        )
                        pair.append(asyncio.run(run))
                pairs.append(pair)
            ours, bound = (statistics.median(p[i] for p in pairs) for i in (0, 1))
            ratio = statistics.median(p[1] / p[0] for p in pairs)
            kind = "streamed" if stream else "whole"
            rows.append((kind, num_turns, f"{ours:.0f}", f"{bound:.0f}", f"{ratio:.2f}x"))
    header = ("answer", "turns a session", "gateway, us", "bound, us", "requests a core to bound's")
    return table(header, rows)


def flatness_section(model_dir: Path) -> str:
    with Server("gateway", model_dir, 201) as server:
        before = server.resident_bytes()
        by_turn = asyncio.run(cost_by_turn(server, num_sessions=200))
        grown = server.resident_bytes() - before
    windows = ((2, 4), (9, 11), (24, 26), (48, 50))
    rows = [
        (f"turn {a} to {b}", f"{statistics.mean(by_turn[t] for t in range(a, b + 1)):.0f}")
        for a, b in windows
    ]
    for num_open in (100, 1000, 10_000):
        with Server("gateway", model_dir, num_open + 400) as server:
            run = cost(server, num_turns=4, num_requests=1200, stream=False)
            rows.append((f"4 turns, {num_open} other sessions open", f"{asyncio.run(run):.0f}"))
    held = f"A session of 50 turns holds {grown / 200 / 1024:.0f} KiB."
    return table(("what", "CPU us a request"), rows) + f"\n\n{held}"


def memory_section(model_dir: Path) -> str:
    num_sessions = 2000
    with Server("gateway", model_dir, num_sessions) as server:
        before = server.resident_bytes()
        run = cost(server, num_turns=4, num_requests=4 * num_sessions, stream=False)
        asyncio.run(run)
        grown = server.resident_bytes() - before
    kib = grown / num_sessions / 1024
    return f"A session of 4 turns (about 2.6 KB of text first, 32 tokens an answer) holds {kib:.0f} KiB."


def latency_section(model_dir: Path, *, rounds: int) -> str:
    rows = []
    for stream in (False, True):
        per_round = []
        for _ in range(rounds):
            waits = {}
            for role in ("gateway", "echo"):
                with Server(role, model_dir, NUM_CLIENTS) as server:
                    run = latencies(
                        server, rate=200, num_requests=800, stream=stream and role != "echo"
                    )
                    waits[role] = sorted(asyncio.run(run))
            p50, p99 = (
                waits["gateway"][int(q * 800)] - waits["echo"][int(q * 800)] for q in (0.5, 0.99)
            )
            per_round.append((p50, p99))
        p50, p99 = (statistics.median(r[i] for r in per_round) for i in (0, 1))
        what = "to the first event of a stream" if stream else "to the whole answer"
        rows.append((what, f"{p50:.2f}", f"{p99:.2f}"))
    return table(("ms added at 200 requests/s, 64 sessions", "p50", "p99"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--serve", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    model_dir = resolve_model(options.model)
    if options.serve:
        asyncio.run(serve(options.serve, model_dir, options.sessions))
        return
    sections = [
        f"## Gateway: CPU a request, latency, memory\n\n`python benchmarks/gateway.py --model "
        f"{options.model} --rounds {options.rounds}`: an engine that answers {NUM_TOKENS} tokens at "
        "once. `bound` renders, encodes the whole prompt and detokenises, and remembers nothing.",
        costs_section(model_dir, rounds=options.rounds, num_requests=options.requests),
        flatness_section(model_dir),
        latency_section(model_dir, rounds=options.rounds),
        memory_section(model_dir),
    ]
    text = "\n\n".join(sections)
    print(text)
    if options.write:
        write_section("gateway", text)


if __name__ == "__main__":
    main()
