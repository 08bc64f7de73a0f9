"""Our gateway and the peers, side by side: what a request and a stream cost, and how long they take.

Each server is started once; rounds are interleaved, and a ratio is the median of the rounds' own.
"""

import asyncio
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from tables import table

from gateways.answers import NUM_TOKENS
from gateways.client import NUM_CLIENTS, TURNS, cost, deltas_of_a_stream, latencies
from gateways.peers import PEERS, Peer
from gateways.process import Server, ServerError, own_server

OURS = "this gateway, engine inside"
REMOTE = "this gateway, SGLang's protocol"
PASSING = "this gateway, `--upstream`"
NUM_REQUESTS = 8 * NUM_CLIENTS
"""Number of requests of one measurement: each client plays one session of `TURNS` turns."""
LATENCY_RATE, NUM_WAITS, NUM_OPEN = 20.0, 80, 16
ABOUT = f"""\
Comparison with other gateways. Each runs in an environment of its own with one worker process, without
debug logging, and with only those callbacks that record. Each forwards to an upstream that answers
the same {NUM_TOKENS} tokens at once, as one write; the upstream's CPU time is not counted. {NUM_CLIENTS}
clients load the gateway to saturation, with {TURNS} turns a session. The waits are measured at
{LATENCY_RATE:.0f} requests/s. `{REMOTE}` is the form that serves training: its client of an
SGLang server reads the same tokens from the upstream. If a stream has fewer pieces than the upstream sent,
the gateway made up the stream after it had the whole answer."""


@dataclass(slots=True)
class Rival:
    """A server of the comparison, and what was measured on it."""

    server: Server
    records: str
    num_deltas: int = 0
    costs: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Microseconds of CPU a request of each round, whole and streamed."""
    waits: dict[bool, float] = field(default_factory=dict)
    """Median milliseconds to the first byte."""


def compare(model_dir: Path, rounds: Iterable[int], names: Sequence[str], *, most: int) -> str:
    """The section's text. `most`: so many rounds at most."""
    num_warm = 1 + (NUM_CLIENTS + 1)
    num_sessions = num_warm + 2 * most * (NUM_REQUESTS // TURNS + 1) + 2 * (NUM_OPEN + NUM_WAITS)
    rivals: dict[str, Rival] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        upstream = stack.enter_context(own_server("upstream", model_dir, 1)).seats[0].url

        def enter(title: str, records: str, serve: Callable[..., Server]) -> None:
            try:
                server = stack.enter_context(serve(model_dir, num_sessions, upstream=upstream))
                rival = Rival(server, records)
                _warm_up(rival)
            except (ServerError, aiohttp.ClientError, TimeoutError) as error:
                missing[title] = str(error)
                say(f"{title}: {error}")
            else:
                rivals[title] = rival
                say(f"{title}: ready, {server.resident_bytes() / 2**20:.0f} MB")

        enter(OURS, "tokens", partial(own_server, "gateway"))
        enter(REMOTE, "tokens", partial(own_server, "remote"))
        enter(PASSING, "text", partial(own_server, "passing"))
        for peer in (PEERS[name] for name in names):
            enter(peer.title, peer.records, peer.serve)
        for _ in rounds:
            for stream in (False, True):
                for title, rival in rivals.items():
                    us = asyncio.run(_spent(rival, stream=stream))
                    rival.costs[stream].append(us)
                    say(f"{title}, streamed={stream}: {us:.0f} us, {1e6 / us:.0f}/s a core")
        for rival in rivals.values():
            for stream in (False, True):
                rival.waits[stream] = asyncio.run(_wait(rival, stream=stream))
        return _report(rivals, missing, [PEERS[name] for name in names])


def _warm_up(rival: Rival) -> None:
    """Lazy imports and first connections are not what a request costs."""
    rival.num_deltas = asyncio.run(deltas_of_a_stream(rival.server))
    asyncio.run(cost(rival.server, num_turns=1, num_requests=NUM_CLIENTS, stream=False))


async def _spent(rival: Rival, *, stream: bool) -> float:
    return await cost(rival.server, num_turns=TURNS, num_requests=NUM_REQUESTS, stream=stream)


async def _wait(rival: Rival, *, stream: bool) -> float:
    waits = await latencies(
        rival.server, num_open=NUM_OPEN, rate=LATENCY_RATE, num_requests=NUM_WAITS, stream=stream
    )
    return statistics.median(waits)


def _report(rivals: dict[str, Rival], missing: dict[str, str], peers: Sequence[Peer]) -> str:
    ours = rivals[OURS]
    rows = []
    for title, rival in rivals.items():
        rates = []
        for stream in (False, True):
            rates += [
                f"{1e6 / statistics.median(rival.costs[stream]):.0f}",
                f"{_times(ours, rival, stream=stream):.2f}x",
            ]
        waits = [f"{rival.waits[stream]:.1f}" for stream in (False, True)]
        memory = f"{rival.server.resident_bytes() / 2**20:.0f}"
        rows.append((title, rival.records, *rates, rival.num_deltas, *waits, memory))
    header = (
        *("server", "records", "requests/s a core", "ours to it", "streams/s a core", "ours to it"),
        *("pieces a stream", "whole, p50 ms", "first event, p50 ms", "MB at the end"),
    )
    how = [f"- {peer.title}: {peer.how}" for peer in peers if peer.title in rivals]
    failed = [f"- {title}: not measured, {reason}." for title, reason in missing.items()]
    return "\n".join([ABOUT, "", table(header, rows), "", _verdict(rivals), "", *how, *failed])


def _verdict(rivals: dict[str, Rival]) -> str:
    own = (OURS, REMOTE, PASSING)
    peers = {title: rival for title, rival in rivals.items() if title not in own}
    if not peers:
        return "No peer was there to compare with."
    lines = []
    for stream, what in ((False, "requests"), (True, "streams")):
        best = min(peers, key=lambda title: statistics.median(peers[title].costs[stream]))
        times = (
            f"{title}, {_times(rivals[title], peers[best], stream=stream):.2f}x" for title in own
        )
        lines.append(f"- {what} a core to the best peer's ({best}): {'; '.join(times)}")
    return "\n".join(lines)


def _times(ours: Rival, rival: Rival, *, stream: bool) -> float:
    pairs = zip(ours.costs[stream], rival.costs[stream], strict=True)
    return statistics.median(theirs / mine for mine, theirs in pairs)


def say(progress: str) -> None:
    print(f"  {progress}", file=sys.stderr, flush=True)
