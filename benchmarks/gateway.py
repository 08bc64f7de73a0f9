"""What the gateway costs: CPU a request, latency added, memory a session.

    python benchmarks/gateway.py [--model smollm2] [--rounds 3] [--only latency,turns] [--write]

Three servers, each a process of its own over the same trivial engine (32 tokens at once): the
gateway; `bound`, a plain aiohttp server that renders, encodes the whole prompt and detokenises, which
is the least that an exact gateway without memory can do; and `echo`, which parses the body and
answers a constant. Cost is the server's own CPU time, read from the kernel, so a busy machine
stretches it less than it stretches a clock. Rounds are interleaved; ratios are medians of per-round
ratios. Sections are printed as they are done; `--budget` bounds the rounds of each.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
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
TURNS = 8
"""Of a session, where its length is not what is measured."""
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
    message = {"role": "assistant", "content": "The answer is not clear. " * 6}
    answered = orjson.dumps({"choices": [{"message": message}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        orjson.loads(await request.read())
        return web.Response(body=answered)

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
        """CPU time that the server's process has used, all of its threads."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9

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
        self.num_turns = 0
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION.format(number)},
        ]

    async def turn(self, *, stream: bool = False) -> float:
        """Play one turn; the seconds until the first byte of the answer."""
        self.num_turns += 1
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
        await Conversation(server, -1, http).turn(stream=stream)  # what is done once is not counted
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


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: so many rounds, or as many as the budget allows, and at least one."""

    num_rounds: int
    budget_s: float
    num_requests: int

    def rounds(self) -> Iterator[int]:
        until = time.monotonic() + self.budget_s
        for number in range(self.num_rounds):
            if number and time.monotonic() > until:
                return
            yield number


def costs_section(model_dir: Path, effort: Effort) -> str:
    cases = list(itertools.product((False, True), (1, TURNS)))
    measured: dict[tuple[bool, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in effort.rounds():
        for stream, num_turns in cases:
            ours, bound = (
                _cost(role, model_dir, num_turns, effort.num_requests, stream=stream)
                for role in ("gateway", "bound")
            )
            measured[stream, num_turns].append((ours, bound))
            say(f"streamed={stream} turns={num_turns}: {ours:.0f} us, bound {bound:.0f} us")
    rows = []
    for (stream, num_turns), pairs in measured.items():
        ours, bound = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        kind = "streamed" if stream else "whole"
        rows.append((kind, num_turns, f"{ours:.0f}", f"{bound:.0f}", f"{ratio:.2f}x"))
    header = ("answer", "turns a session", "gateway, us", "bound, us", "requests a core to bound's")
    return table(header, rows)


def _cost(
    role: str, model_dir: Path, num_turns: int, num_requests: int, *, stream: bool, others: int = 0
) -> float:
    num_sessions = num_requests // num_turns + 1 + others
    with Server(role, model_dir, num_sessions) as server:
        return asyncio.run(
            cost(server, num_turns=num_turns, num_requests=num_requests, stream=stream)
        )


def turns_section(model_dir: Path, effort: Effort) -> str:
    """What a request costs as its session grows; `echo` parses the same growing bodies."""
    num_sessions = max(20, effort.num_requests // 20)
    windows = ((2, 4), (9, 11), (24, 26), (48, 50))
    rounds: list[dict[str, list[float]]] = []
    grown = 0
    for _ in effort.rounds():
        costs: dict[str, list[float]] = {}
        for role in ("echo", "gateway"):
            with Server(role, model_dir, num_sessions) as server:
                before = server.resident_bytes()
                by_turn = asyncio.run(cost_by_turn(server, num_sessions=num_sessions))
                grown = server.resident_bytes() - before
            costs[role] = [
                statistics.median(by_turn[t] for t in range(a, b + 1)) for a, b in windows
            ]
            say(f"{role}: " + ", ".join(f"{us:.0f}" for us in costs[role]) + " us")
        rounds.append(costs)
    rows = []
    for i, (a, b) in enumerate(windows):
        ours, echo = (statistics.median(r[role][i] for r in rounds) for role in ("gateway", "echo"))
        growth = statistics.median(r["gateway"][i] / r["gateway"][0] for r in rounds)
        added = statistics.median(r["gateway"][i] - r["echo"][i] for r in rounds)
        rows.append((f"{a} to {b}", f"{ours:.0f}", f"{growth:.2f}x", f"{echo:.0f}", f"{added:.0f}"))
    header = ("turn", "gateway, us", "to turn 2", "echo, us", "added, us")
    held = f"A session of 50 turns holds {grown / num_sessions / 1024:.0f} KiB."
    return f"{table(header, rows)}\n\n{held}"


def sessions_section(model_dir: Path, effort: Effort) -> str:
    counts = (100, 1000, 10_000)
    measured: list[list[float]] = []
    for _ in effort.rounds():
        measured.append(
            [_cost("gateway", model_dir, 4, 1200, stream=False, others=n) for n in counts]
        )
        say(", ".join(f"{us:.0f}" for us in measured[-1]) + " us")
    rows = [
        (
            f"{count:,}",
            f"{statistics.median(costs[i] for costs in measured):.0f}",
            f"{statistics.median(costs[i] / costs[0] for costs in measured):.2f}x",
        )
        for i, count in enumerate(counts)
    ]
    return table(("other sessions open", "us a request", "to 100"), rows)


def memory_section(model_dir: Path, effort: Effort) -> str:
    num_sessions = effort.num_requests
    with Server("gateway", model_dir, num_sessions + 1) as server:
        before = server.resident_bytes()
        run = cost(server, num_turns=4, num_requests=4 * num_sessions, stream=False)
        asyncio.run(run)
        grown = server.resident_bytes() - before
    kib = grown / num_sessions / 1024
    return f"A session of 4 turns (about 2.6 KB of text first, 32 tokens an answer) holds {kib:.0f} KiB."


def latency_section(model_dir: Path, effort: Effort) -> str:
    num_requests = 400
    cases = [(n, rate, s) for n, rate in ((1, 50), (64, 200), (512, 200)) for s in (False, True)]
    measured: dict[tuple[int, int, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in effort.rounds():
        for num_open, rate, stream in cases:
            waits = {}
            for role in ("echo", "gateway"):
                with Server(role, model_dir, num_open + num_requests) as server:
                    run = latencies(
                        server,
                        num_open=num_open,
                        rate=rate,
                        num_requests=num_requests,
                        stream=stream and role != "echo",
                    )
                    waits[role] = asyncio.run(run)
            p50, p99 = (
                waits["gateway"][int(q * num_requests)] - waits["echo"][int(q * num_requests)]
                for q in (0.5, 0.99)
            )
            measured[num_open, rate, stream].append((p50, p99))
            say(f"{num_open} sessions, streamed={stream}: p50 +{p50:.2f} ms, p99 +{p99:.2f} ms")
    rows = [
        (
            num_open,
            rate,
            "the first event of a stream" if stream else "the whole answer",
            *(f"{statistics.median(pair[i] for pair in pairs):.2f}" for i in (0, 1)),
        )
        for (num_open, rate, stream), pairs in measured.items()
    ]
    return table(("sessions", "requests/s", "ms added until", "p50", "p99"), rows)


SECTIONS = {
    "latency": latency_section,
    "turns": turns_section,
    "costs": costs_section,
    "sessions": sessions_section,
    "memory": memory_section,
}


def say(progress: str) -> None:
    print(f"  {progress}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="of one measurement")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for a section's rounds")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--serve", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    model_dir = resolve_model(options.model)
    if options.serve:
        asyncio.run(serve(options.serve, model_dir, options.sessions))
        return
    effort = Effort(options.rounds, options.budget, options.requests)
    sections = [
        f"## Gateway: CPU a request, latency, memory\n\n`python benchmarks/gateway.py --model "
        f"{options.model} --rounds {options.rounds}`: an engine that answers {NUM_TOKENS} tokens at "
        "once. `bound` renders, encodes the whole prompt and detokenises, and remembers nothing; "
        "`echo` parses the body and answers a constant."
    ]
    print(sections[0], flush=True)
    for name in options.only.split(","):
        sections.append(SECTIONS[name](model_dir, effort))
        print(f"\n{sections[-1]}", flush=True)
    text = "\n\n".join(sections)
    if options.write:
        write_section("gateway", text)


if __name__ == "__main__":
    main()
