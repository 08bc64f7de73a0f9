"""The cost of the gateway: CPU a request, latency added, memory a session; and the cost of its
peers.

    python benchmarks/gateway.py [--model smollm2] [--rounds 3] [--only latency,turns] [--write]
    python benchmarks/gateway.py --only peers [--peers litellm,areal]
    python benchmarks/gateway.py --against DIR [--rounds 12] [--budget 240]

Servers are processes of their own (`gateways/servers.py`) over the same trivial engine (32 tokens at
once): the gateway; `bound`, a plain aiohttp server that renders, encodes the whole prompt and
detokenises, which is the least that an exact gateway without memory can do; and `echo`, which parses
the body and answers a constant. Peers are installed when they are first asked for, each into an
environment of its own (`gateways/peers.py`); `--peers ""` measures none.

Cost is the server's own CPU time, read from the kernel, so a busy machine stretches it less than it
stretches a clock; requests/s a core is its inverse. Rounds are interleaved; ratios are medians of
per-round ratios. Sections are printed as they are done; `--budget` bounds the rounds of each.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateways.against import compare_checkouts
from gateways.answers import NUM_TOKENS
from gateways.client import TURNS, cost, cost_by_turn, latencies
from gateways.comparison import compare, say
from gateways.peers import PEERS
from gateways.process import own_server
from tables import table, write_section

from areal_sdk.models import resolve_model


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort of a measurement: so many rounds, or as many as the budget allows, and at least
    one."""

    num_rounds: int
    budget_s: float
    num_requests: int
    peers: tuple[str, ...]

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
        rates = (f"{1e6 / us:.0f}" for us in (ours, bound))
        rows.append((kind, num_turns, f"{ours:.0f}", f"{bound:.0f}", *rates, f"{ratio:.2f}x"))
    header = ("answer", "turns a session", "gateway, us", "bound, us")
    rates_header = ("gateway, requests/s a core", "bound, requests/s a core", "to bound's")
    return f"At saturation:\n\n{table((*header, *rates_header), rows)}"


def _cost(
    role: str, model_dir: Path, num_turns: int, num_requests: int, *, stream: bool, others: int = 0
) -> float:
    num_sessions = num_requests // num_turns + 1 + others
    with own_server(role, model_dir, num_sessions) as server:
        return asyncio.run(
            cost(server, num_turns=num_turns, num_requests=num_requests, stream=stream)
        )


def turns_section(model_dir: Path, effort: Effort) -> str:
    """The cost of a request as its session grows; `echo` parses the same growing bodies."""
    num_sessions = max(20, effort.num_requests // 20)
    windows = ((2, 4), (9, 11), (24, 26), (48, 50))
    rounds: list[dict[str, list[float]]] = []
    grown = 0
    for _ in effort.rounds():
        costs: dict[str, list[float]] = {}
        for role in ("echo", "gateway"):
            with own_server(role, model_dir, num_sessions) as server:
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
    held = f"A session of 50 turns holds {grown / num_sessions:,.0f} bytes."
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
    with own_server("gateway", model_dir, num_sessions + 1) as server:
        before = server.resident_bytes()
        run = cost(server, num_turns=4, num_requests=4 * num_sessions, stream=False)
        asyncio.run(run)
        grown = server.resident_bytes() - before
    return (
        "A session of 4 turns (about 2.6 KB of text first, 32 tokens an answer) holds "
        f"{grown / num_sessions:,.0f} bytes."
    )


def latency_section(model_dir: Path, effort: Effort) -> str:
    num_requests = 400
    cases = [(n, rate, s) for n, rate in ((1, 50), (64, 200), (512, 200)) for s in (False, True)]
    measured: dict[tuple[int, int, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in effort.rounds():
        for num_open, rate, stream in cases:
            waits = {}
            for role in ("echo", "gateway"):
                with own_server(role, model_dir, num_open + num_requests) as server:
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


def peers_section(model_dir: Path, effort: Effort) -> str:
    return compare(model_dir, effort.rounds(), effort.peers, most=effort.num_rounds)


SECTIONS = {
    "latency": latency_section,
    "turns": turns_section,
    "costs": costs_section,
    "sessions": sessions_section,
    "memory": memory_section,
    "peers": peers_section,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="of one measurement")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds for a section's rounds")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout")
    options = parser.parse_args()
    model_dir = resolve_model(options.model)
    peers = tuple(filter(None, options.peers.split(",")))
    effort = Effort(options.rounds, options.budget, options.requests, peers)
    if options.against is not None:
        most = options.rounds
        print(compare_checkouts(model_dir, options.against, effort.rounds(), most=most))
        return
    sections = [
        f"## Gateway: CPU a request, latency, memory\n\n`python benchmarks/gateway.py --model "
        f"{options.model} --rounds {options.rounds}`: the engine answers {NUM_TOKENS} tokens at "
        "once. `bound` is a server that renders, encodes the whole prompt and detokenises, and "
        "remembers nothing. `echo` is a server that parses the body and answers a constant. "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start."
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
