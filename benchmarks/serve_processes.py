"""The cost of a request to `areal-sdk serve --processes N`, against one process.

    python benchmarks/serve_processes.py [--processes 1 2 4] [--rounds 7] [--write]

The servers are the command itself, over an engine that answers 32 tokens at once in the process that
asks. One client process has 64 clients for each gateway process. With connections of its own, as most
agents have, a session needs a hop for its first request, and its connection moves with the second. If all
sessions share all connections, (N - 1) / N of the requests arrive at a process that does not own their session.
A request with the bare key is answered where it arrives.

The servers live through all rounds and take turns. Cost is the CPU time of all processes of a server,
read from the kernel, so it does not depend on how many cores they share. A busy machine only adds to it, so
the least of the rounds is nearest to what a request needs. A share of linear is the least cost of one process
divided by that of N: N processes on N cores do N times that share of the work of one.
"""

import argparse
import asyncio
import itertools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from gateways.client import NUM_CLIENTS, TURNS, Conversation, cost
from gateways.process import Seat, Server, ServerError, cpu_seconds_of
from tables import table, write_section

from areal_sdk.gateway.processes.shard import Shard

DOCUMENT = Path(__file__).parents[1] / "docs" / "serve.md"
KEY = "sk-benchmark-0123456789"
SHARD = Shard(0, 2, users=["admin"])
NUM_DOORS = 32


@dataclass(frozen=True, slots=True)
class Case:
    stream: bool
    num_turns: int = TURNS
    """Turns of a session. One: the client names no session."""
    shares_connections: bool = True

    def hops(self, processes: int) -> str:
        """The share of requests that arrive at another process than their owner."""
        wrong = (processes - 1) / processes
        if self.num_turns == 1:
            return "0%"
        return f"{wrong * (1 if self.shares_connections else 2 / self.num_turns):.0%}"


CASES = {
    "own connections, whole answers": Case(stream=False, shares_connections=False),
    "own connections, streamed": Case(stream=True, shares_connections=False),
    "shared connections, whole answers": Case(stream=False),
    "shared connections, streamed": Case(stream=True),
    "the bare key, whole answers": Case(stream=False, num_turns=1),
    "the bare key, streamed": Case(stream=True, num_turns=1),
}


@dataclass(slots=True)
class Fleet:
    """A running `areal-sdk serve`, as the client of the benchmarks wants a server."""

    process: "subprocess.Popen[str]"
    url: str
    is_named: bool = True
    owner: int | None = None
    """The process of two that owns the next sessions; None: both do."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_seat(self) -> Seat:
        if not self.is_named:
            return Seat(self.url, KEY)
        names = (f"session-{number}" for number in self._numbers)
        wanted = (None, self.owner)
        return Seat(self.url, f"{KEY}/{next(n for n in names if _owner(n, self) in wanted)}")

    def cpu_s(self) -> float:
        """CPU-seconds of the main process and all gateway processes."""
        return cpu_seconds_of(self.process.pid)


def _owner(name: str, fleet: Fleet) -> int | None:
    return None if fleet.owner is None else SHARD.of_session(f"admin/{name}")


@contextmanager
def serving(processes: int, model: str) -> Iterator[Fleet]:
    here = Path(__file__).parent / "gateways"
    command = [sys.executable, "-m", "areal_sdk", "serve", "--model", model, "--port", "0"]
    command += ["--processes", str(processes), "--engine", "instant", "--admin-key", KEY]
    command += ["--plugin", str(here / "instant_plugin.py")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"serving \S+ at (\S+)", line):
                yield Fleet(process, found[1])
                return
        raise ServerError(f"serve --processes {processes} ended before it served")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def measure(fleet: Fleet, case: str, processes: int, num_requests: int) -> tuple[float, float]:
    """CPU microseconds a request, and requests a second. Each process gets `num_requests`."""
    kind = CASES[case]
    fleet.is_named = kind.num_turns > 1
    began = time.perf_counter()
    server: Server = fleet  # type: ignore[assignment]  # it has what `cost` uses
    total = num_requests * processes
    spending = cost(
        server,
        num_turns=kind.num_turns,
        num_requests=total,
        stream=kind.stream,
        num_clients=NUM_CLIENTS * processes,
        shares_connections=kind.shares_connections,
    )
    return asyncio.run(spending), total / (time.perf_counter() - began)


async def hop_costs(fleet: Fleet, *, stream: bool, rounds: int) -> tuple[float, float]:
    """CPU microseconds of a request at its owner, and of a hop, with connections to one of two processes.

    Each connection alternates between two sessions, so that it does not move: both belong to its process, or
    one of them to the other process. So half of the requests hop, or none.
    """
    server: Server = fleet  # type: ignore[assignment]
    spent: dict[int, list[float]] = {0: [], 1: []}
    async with AsyncExitStack() as stack:
        doors: list[aiohttp.ClientSession] = []
        while len(doors) < NUM_DOORS:
            http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
            if await _arrives_at(fleet.url, http) == 0:
                doors.append(await stack.enter_async_context(http))
            else:
                await http.close()
        fleet.is_named = True

        async def play(http: aiohttp.ClientSession, other: int) -> None:
            conversations = []
            for fleet.owner in (0, other):
                conversations.append(Conversation(server, 0, http))
            for _ in range(TURNS):
                for conversation in conversations:
                    await conversation.turn(stream=stream)

        for number in range(2 * rounds + 1):
            other = (number + number // 2) % 2
            before = fleet.cpu_s()
            await asyncio.gather(*(play(http, other) for http in doors))
            us = (fleet.cpu_s() - before) / (2 * NUM_DOORS * TURNS) * 1e6
            if number:  # what is done once is not counted
                spent[other].append(us)
    own, mixed = (min(costs) for costs in spent.values())
    return own, 2 * (mixed - own)


async def _arrives_at(url: str, http: aiohttp.ClientSession) -> int | None:
    """The process that a connection leads to."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with http.post(f"{url}/chat/completions", json=body, headers=headers) as reply:
        return SHARD.of_reply((await reply.json())["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--requests", type=int, default=512, help="of one measurement, for each process"
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/serve.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        fleets = {n: stack.enter_context(serving(n, options.model)) for n in options.processes}
        for n, fleet in fleets.items():  # what is done once in a process is not counted
            for case in CASES:
                measure(fleet, case, n, NUM_CLIENTS)
        for number in range(options.rounds):
            for case in CASES:
                order = list(fleets) if number % 2 else list(reversed(fleets))
                for n in order:
                    measured.setdefault((case, n), []).append(
                        measure(fleets[n], case, n, options.requests)
                    )
                latest = (f"{n}: {measured[case, n][-1][0]:.0f} us" for n in fleets)
                print(f"{case}: {', '.join(latest)}", file=sys.stderr, flush=True)
        two = fleets.get(2) or stack.enter_context(serving(2, options.model))
        measured_hops = {
            kind: asyncio.run(hop_costs(two, stream=stream, rounds=2 * options.rounds))
            for kind, stream in (("whole", False), ("streamed", True))
        }
    rows = []
    first = options.processes[0]
    for case in CASES:
        for n in options.processes:
            costs, rates = zip(*measured[case, n], strict=True)
            one = min(spent for spent, _ in measured[case, first])
            share = one / min(costs)
            rows.append(
                (
                    case,
                    n,
                    CASES[case].hops(n),
                    f"{min(costs):.0f}",
                    f"{statistics.median(costs):.0f}",
                    f"{share:.2f}",
                    f"{statistics.median(rates):.0f}",
                )
            )
    hops = [(kind, f"{own:.0f}", f"{hop:.0f}") for kind, (own, hop) in measured_hops.items()]
    hop_table = table(("answer", "a request at its owner, us", "a hop, us"), hops)
    header = (
        "requests",
        "processes",
        "at another process",
        "CPU, us a request: least",
        "median",
        "share of linear",
        "requests/s",
    )
    text = (
        f"`python benchmarks/serve_processes.py --rounds {options.rounds}` on {os.cpu_count()} cores, "
        f"load average {load:.1f} at the start:\n\n{table(header, rows)}\n\nWith two processes, and "
        f"connections to one of them:\n\n{hop_table}"
    )
    print(text)
    if options.write:
        write_section("serve-processes", text, document=DOCUMENT)


if __name__ == "__main__":
    main()
