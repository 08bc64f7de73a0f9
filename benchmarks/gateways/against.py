"""This checkout's gateway and another checkout's, side by side: did a request become dearer?

Both servers live through all rounds, and take turns every few hundred requests, so that a busy machine
disturbs both alike. A ratio is the median of the ratios of the rounds.
"""

import asyncio
import statistics
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tables import table

from gateways.client import TURNS, cost
from gateways.comparison import say
from gateways.process import Server, own_server

LONG_TURNS = 32
CASES = [
    *((False, num_turns) for num_turns in (1, TURNS, LONG_TURNS)),
    *((True, num_turns) for num_turns in (1, TURNS)),
]
"""Whether the answer is streamed, and the turns of a session."""
NUM_REQUESTS = 512
"""Number of requests of one measurement."""


def compare_checkouts(model_dir: Path, other: Path, rounds: Iterable[int], *, most: int) -> str:
    """The section's text. `other` is a checkout of this repository; `most`: so many rounds at most."""
    num_sessions = sum(NUM_REQUESTS // num_turns + 1 for _, num_turns in CASES) * (most + 1)
    costs: dict[tuple[bool, int], list[tuple[float, float]]] = {case: [] for case in CASES}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(own_server("gateway", model_dir, num_sessions, checkout=checkout))
            for checkout in (None, other)
        ]
        for server in servers:  # what is done once in a process is not counted
            _cost(server, 1, stream=False)
            _cost(server, 1, stream=True)
        for number in rounds:
            for (stream, num_turns), pairs in costs.items():
                order = (0, 1) if number % 2 else (1, 0)
                spent = {i: _cost(servers[i], num_turns, stream=stream) for i in order}
                pairs.append((spent[0], spent[1]))
            say("now, before: " + ", ".join(_pair(pairs[-1]) for pairs in costs.values()))
    rows = [
        (
            "streamed" if stream else "whole",
            num_turns,
            *(f"{statistics.median(pair[i] for pair in pairs):.0f}" for i in (0, 1)),
            f"{statistics.median(now / before for now, before in pairs):.2f}x",
        )
        for (stream, num_turns), pairs in costs.items()
    ]
    header = ("answer", "turns a session", "now, us", "before, us", "now to before")
    return table(header, rows)


def _cost(server: Server, num_turns: int, *, stream: bool) -> float:
    return asyncio.run(cost(server, num_turns=num_turns, num_requests=NUM_REQUESTS, stream=stream))


def _pair(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.0f} {pair[1]:.0f} ({pair[0] / pair[1]:.2f}x)"
