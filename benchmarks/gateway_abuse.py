"""Ordinary traffic while others abuse the gateway: latency, and whether memory returns.

    python benchmarks/gateway_abuse.py [--model smollm2] [--seconds 20] [--rate 200]

A gateway serves in a process of its own. This process sends ordinary requests at a steady rate; a third
one holds 2,000 half-open connections and sends bodies of 50 MB and texts of 30 MB and less, eight a second,
and bodies of shapes that are dear to read (many small objects, deep ones, 10,000 messages, huge tools), four
a second. It fails if the ordinary p99 under abuse is over 100 ms, or if memory does not return.

It also says how much later than due a timer of the gateway's own loop woke, as far as that process itself
used the time: so far its loop, or a thread that keeps the interpreter, made others wait. And with
`--elsewhere` it sends the abuse to a server that throws bodies away: what the ordinary requests then lose,
they lose to the cores that are shared.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1]))

from tables import table, write_section

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models import resolve_model
from areal_sdk.process.memory import short_collections
from areal_sdk.testing import ScriptedEngine

KEY = "sk-admin-of-the-abuse-benchmark"
ANSWER = "It is said in a sentence of about thirty tokens, as a chat's answers often are. " * 2
MAX_CONTEXT = 8192
NUM_HALF_OPEN = 2000
PAUSE_S = 1.0
"""Seconds between two abusive requests of each of the eight clients that send such."""
MOST_P99_MS = 100.0
MOST_KEPT_MB = 150.0
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


def chat(text: str) -> bytes:
    return shaped(json.dumps({"role": "user", "content": text}))


def shaped(messages: str, rest: str = "") -> bytes:
    return f'{{"model":"policy","messages":[{messages}]{rest}}}'.encode()


def dear_shapes() -> dict[str, bytes]:
    """Bodies below every limit of bytes, whose many values or levels are what costs."""
    message = '{"role":"user","content":"hi"}'
    properties = {f"p{number}": {"type": "string"} for number in range(1000)}
    functions = [{"name": f"f{n}", "parameters": {"properties": properties}} for n in range(100)]
    tools = json.dumps([{"type": "function", "function": function} for function in functions])
    return {
        "3.9 MB of small objects": shaped(message, f',"metadata":[{"{}," * 1_300_000}1]'),
        "3.9 MB of small messages": shaped("{}," * 1_300_000 + message),
        "3.9 MB of numbers": shaped(message, f',"metadata":[{"0," * 1_950_000}1]'),
        "3.9 MB deep": shaped(message, f',"metadata":{"[" * 1_950_000}{"]" * 1_950_000}'),
        "150 deep, often": shaped(message, f',"metadata":[{("[" * 149 + "]" * 149 + ",") * 800}1]'),
        "10,000 messages": shaped(",".join([message] * 10_000)),
        "8,000 messages": shaped(",".join([message] * 8_000)),
        "huge tools": shaped(message, f',"tools":{tools}'),
    }


ORDINARY = chat("A question with some context before it. " * 50)


async def lateness(since: list[float]) -> None:
    """Note for good how many ms later than due a timer of this loop wakes.

    Only as far as this process used that time itself: what others take of a busy core is not counted.
    """
    loop = asyncio.get_running_loop()
    while True:
        due, used = loop.time() + 0.01, time.process_time()
        await asyncio.sleep(0.01)
        late, used = loop.time() - due, time.process_time() - used
        since.append(min(late, used) * 1e3)


async def serve(model: str) -> None:
    model_dir = resolve_model(model)
    engine = ScriptedEngine(
        ANSWER, model_dir=model_dir, max_context=MAX_CONTEXT, tokens_per_chunk=64
    )
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="policy", admin_key=KEY)
    await gateway.start()
    late: list[float] = []
    watching = asyncio.create_task(lateness(late))
    print(gateway.base_url, flush=True)
    loop = asyncio.get_running_loop()
    with short_collections():  # as `areal-sdk serve` and `train` do
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(described(late), flush=True)
            late.clear()
    watching.cancel()
    await gateway.aclose()


async def throw_away() -> None:
    """A server that reads bodies and answers nothing worth having, in a process of its own."""

    async def read(request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", read)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


async def abuse(url: str, *, large_only: bool) -> None:
    """Abuse the gateway until stdin ends; print what became of it."""
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    address = urlsplit(url)
    held = []
    for _ in range(NUM_HALF_OPEN):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n")
        held.append(writer)
    print("held", flush=True)
    statuses: Counter[str] = Counter()
    text = "Some words of a text that is far too long for any model. "
    payloads = {
        "50 MB body": b" " * 50_000_000,
        "30 MB text": chat(text * (30_000_000 // len(text))),
        "2 MB text": chat(text * (2_000_000 // len(text))),
        "200 kB text": chat(text * (200_000 // len(text))),
    }

    shapes = dear_shapes()

    async def send(
        http: aiohttp.ClientSession, path: str, names: Iterable[str], bodies: Mapping[str, bytes]
    ) -> None:
        for name in names:
            try:
                async with http.post(f"{url}/{path}", data=bodies[name]) as reply:
                    statuses[f"{name}: {reply.status}"] += 1
            except aiohttp.ClientError as exc:
                statuses[f"{name}: {type(exc).__name__}"] += 1
            await asyncio.sleep(PAUSE_S)

    async with aiohttp.ClientSession(headers=HEADERS) as http:
        paths = ("chat/completions", "messages/count_tokens")
        lists: list[tuple[Sequence[str], Mapping[str, bytes]]]
        lists = [((name,), payloads) for name in payloads]
        if not large_only:
            lists += [(tuple(shapes)[half:] + tuple(shapes)[:half], shapes) for half in (0, 4)]
        sending = [
            asyncio.create_task(send(http, path, itertools.cycle(names), bodies))
            for names, bodies in lists
            for path in paths
        ]
        await ended
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    closed = sum(writer.transport.is_closing() for writer in held)
    print(json.dumps({**statuses, "half-open, closed by the gateway": closed}), flush=True)


async def ordinary(url: str, *, seconds: float, rate: float) -> list[float]:
    """Milliseconds of each request, from when it was due: waiting for a turn counts."""
    latencies: list[float] = []
    loop = asyncio.get_running_loop()

    async def one(http: aiohttp.ClientSession, due: float) -> None:
        async with http.post(f"{url}/chat/completions", data=ORDINARY) as reply:
            await reply.read()
            assert reply.status == 200, reply.status
        latencies.append((loop.time() - due) * 1e3)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as http:
        begun, tasks = loop.time(), []
        for number in range(int(seconds * rate)):
            due = begun + number / rate
            await asyncio.sleep(due - loop.time())
            tasks.append(asyncio.create_task(one(http, due)))
        await asyncio.gather(*tasks)
    return latencies


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def described(latencies: list[float]) -> str:
    cuts = statistics.quantiles(latencies, n=100)
    return f"p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, most {max(latencies):.0f} ms"


@dataclasses.dataclass(frozen=True)
class Measured:
    quiet: list[float]
    abused: list[float]
    loop: str
    """Delay of the gateway's loop under abuse."""
    memory_mb: tuple[float, float, float]
    """Megabytes before the abuse, at its end, and after it."""
    answered: str

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.abused, n=100)[98]

    @property
    def is_good(self) -> bool:
        before, _, after = self.memory_mb
        return self.p99_ms <= MOST_P99_MS and after - before <= MOST_KEPT_MB

    def __str__(self) -> str:
        before, most, after = self.memory_mb
        return "\n".join(
            (
                f"quiet: {described(self.quiet)}",
                f"under abuse: {described(self.abused)}; the loop late by {self.loop}",
                f"memory: {before:.0f} MB before, {most:.0f} at its end, {after:.0f} after",
                f"abuse: {self.answered}",
            )
        )


async def measure(
    model: str, *, seconds: float, rate: float, elsewhere: bool, large_only: bool
) -> Measured:
    command = [sys.executable, __file__, "--model", model]
    command += ["--large-only"] if large_only else []

    def started(*role: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, *role], stdin=pipe, stdout=pipe, text=True)

    def line_of(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None, "it is a pipe"
        return process.stdout.readline().strip()

    loop = asyncio.get_running_loop()
    server = started("--serve")
    url = await loop.run_in_executor(None, line_of, server)

    async def late() -> str:
        assert server.stdin is not None, "it is a pipe"
        server.stdin.write("\n")
        server.stdin.flush()
        return await loop.run_in_executor(None, line_of, server)

    await ordinary(url, seconds=2, rate=rate)
    quiet = await ordinary(url, seconds=seconds / 2, rate=rate)
    await late()
    before_mb = resident_mb(server.pid)
    other = started("--throw-away") if elsewhere else None
    abused = url if other is None else await loop.run_in_executor(None, line_of, other)
    abuser = started("--abuse", abused)
    assert await loop.run_in_executor(None, line_of, abuser) == "held"
    latencies = await ordinary(url, seconds=seconds, rate=rate)
    abused_loop = await late()
    most_mb = resident_mb(server.pid)
    printed, _ = await loop.run_in_executor(None, abuser.communicate)
    await ordinary(url, seconds=2, rate=rate)
    after_mb = resident_mb(server.pid)
    await loop.run_in_executor(None, server.communicate)
    if other is not None:
        await loop.run_in_executor(None, other.communicate)
    memory = (before_mb, most_mb, after_mb)
    return Measured(quiet, latencies, abused_loop, memory, printed.strip())


def write(runs: Sequence[Measured], options: argparse.Namespace) -> None:
    rows = [
        (
            *(number, described(run.quiet), described(run.abused), run.loop),
            *(f"{mb:.0f}" for mb in run.memory_mb),
        )
        for number, run in enumerate(runs, start=1)
    ]
    header = (
        *("round", "quiet", "under abuse", "the loop late by"),
        *("MB before", "at the end of the abuse", "after"),
    )
    median = statistics.median(run.p99_ms for run in runs)
    text = f"""## Gateway: ordinary requests while others abuse it

`python benchmarks/gateway_abuse.py {"--large-only " if options.large_only else ""}--rounds {len(runs)} --write`: {options.rate:g} ordinary requests a second, {NUM_HALF_OPEN:,} half-open connections, and eight clients that send bodies of 50 MB and texts of 30 MB, 2 MB and 200 kB, for answers and to have their tokens counted, with a pause of {PAUSE_S:g} s each. The gateway, the ordinary client and the abusers share {os.cpu_count()} cores.

{table(header, rows)}

Median p99 under abuse: {median:.0f} ms (bound: {MOST_P99_MS:.0f} ms)."""
    write_section("gateway-abuse", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=200.0, help="ordinary requests a second")
    parser.add_argument("--rounds", type=int, default=1, help="fails if most of them fail")
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--large-only",
        action="store_true",
        help="bodies that are long, and none that are dear to read",
    )
    parser.add_argument("--elsewhere", action="store_true", help="the abuse meets another server")
    parser.add_argument("--throw-away", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--abuse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    if options.serve:
        asyncio.run(serve(options.model))
    elif options.abuse:
        asyncio.run(abuse(options.abuse, large_only=options.large_only))
    elif options.throw_away:
        asyncio.run(throw_away())
    else:
        runs = []
        for _ in range(options.rounds):
            run = measure(
                options.model,
                seconds=options.seconds,
                rate=options.rate,
                elsewhere=options.elsewhere,
                large_only=options.large_only,
            )
            runs.append(asyncio.run(run))
            print(runs[-1], flush=True)
        print(
            f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {time.strftime('%F')}"
        )
        if options.write:
            write(runs, options)
        num_good = sum(run.is_good for run in runs)
        return int(2 * num_good <= len(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
