"""Speeds of the parts of a run. They are measured in a run, or follow from hardware."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

from areal_sdk import ConfigError

NODE = 8
"""GPUs of a node."""


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Seconds of one decoding step by the number of requests that are decoded together.

    Straight lines between the measured points; beyond them the first and the last line go on.

    >>> curve = DecodeCurve(((1, 0.010), (33, 0.026)))
    >>> [round(curve.step_s(size), 6) for size in (1, 17, 65)]
    [0.01, 0.018, 0.042]
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ConfigError(f"a decode curve needs rising numbers of requests, not {sizes}")
        if any(seconds <= 0.0 for _, seconds in self.points):
            raise ConfigError("a decode curve needs times above 0")

    def step_s(self, num_requests: int) -> float:
        points = self.points
        if len(points) == 1:
            return points[0][1]
        right = min(max(1, bisect_right(points, (num_requests, float("inf")))), len(points) - 1)
        (n0, s0), (n1, s1) = points[right - 1], points[right]
        return max(1e-9, s0 + (s1 - s0) * (num_requests - n0) / (n1 - n0))


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """One inference server: what a request costs it."""

    decode: DecodeCurve
    prefill_s: float = 0.0
    """Seconds of each prompt token that is not cached. Nothing is decoded meanwhile."""
    kv_read_s: float = 0.0
    """Seconds that each token of context in flight adds to a decoding step."""
    request_s: float = 0.0
    """Seconds of each request that occupy nobody: the way there and back."""
    max_slots: int = 256
    """Requests that are decoded together; others wait."""
    kv_tokens: int = 0
    """Number of tokens whose KV the engine's memory holds; 0: as many as the slots need."""
    swap_s: float = 0.0
    """Seconds from the publication of weights until they are served. Nothing is sampled meanwhile."""
    recomputes: bool = True
    """Whether the KV of running requests is computed again after a swap."""
    cores: float = 0.0
    """Cores of the common machine that the engine uses while it computes; 0: it has a machine of its own."""

    def slower(self, factor: float) -> "EngineSpeed":
        """The same server with all times multiplied."""
        return replace(
            self,
            decode=DecodeCurve(tuple((n, factor * s) for n, s in self.decode.points)),
            **_multiplied(self, factor, "prefill_s", "kv_read_s", "request_s", "swap_s"),
        )


@dataclass(frozen=True, slots=True)
class Collectives:
    """The exchange of weights and gradients between ranks that hold a part of each."""

    inside_s: float
    """Seconds in which all weights are gathered twice, and gradients summed, over the links of a node."""
    between_s: float
    """The same over the network between nodes."""
    hop_s: float
    """Seconds that each further rank adds to the exchange."""
    send_s: float
    """Seconds in which a single node sends new weights to the engines; each node sends its part."""
    tokens: int
    """Number of tokens of a rank after which the exchange is done again."""
    updates: int = 1
    """Optimiser updates of a step: the exchange is done at least once for each."""

    def step_s(self, num_tokens: float, ranks: int) -> float:
        """Seconds of a step with `num_tokens` tokens a rank."""
        if ranks == 1:
            return 0.0
        rounds = max(self.updates, num_tokens / self.tokens)
        moved_s = self.inside_s if ranks <= NODE else self.between_s
        return rounds * (moved_s * (ranks - 1) / ranks + self.hop_s * (ranks - 1))


@dataclass(frozen=True, slots=True)
class TrainerSpeed:
    """All ranks of the trainer together: what a step costs."""

    token_s: float
    """Seconds of each token that is computed, if one rank computed all."""
    fixed_s: float = 0.0
    """Seconds of each step that no further rank makes shorter."""
    ranks: int = 1
    sync_s: float = 0.0
    """Seconds of each step for the collectives of several ranks, measured; 0 with one rank."""
    collectives: Collectives | None = None
    """The same by the sizes of messages, where nothing was measured."""
    straggler: float = 0.0
    """Relative time that each doubling of the ranks adds: all wait for the slowest."""
    episode_s: float = 0.0
    """Seconds of each episode of a step that no further rank makes shorter."""
    publish_s: float = 0.0
    """Seconds from the end of a step until its weights are published. The trainer does nothing else
    meanwhile."""
    gather_s: float = 0.0
    """The additional time of publishing if several ranks hold the weights."""
    cores: float = 0.0
    """Cores of the common machine that each rank uses while it computes."""

    def step_s(self, num_tokens: float, num_episodes: int = 0) -> float:
        """Seconds of a step that computes so many tokens.

        >>> TrainerSpeed(token_s=0.001, fixed_s=0.5, ranks=4, sync_s=0.25).step_s(4000)
        1.75
        >>> TrainerSpeed(token_s=0.001, straggler=0.1, ranks=4).step_s(4000)
        1.2
        """
        each = num_tokens / self.ranks
        seconds = self.token_s * each * (1.0 + self.straggler * math.log2(self.ranks))
        seconds += self.fixed_s + self.episode_s * num_episodes
        if self.collectives is not None:
            seconds += self.collectives.step_s(each, self.ranks)
        return seconds + (self.sync_s if self.ranks > 1 else 0.0)

    def slower(self, factor: float) -> "TrainerSpeed":
        """The same trainer with all times multiplied."""
        collectives = self.collectives and replace(
            self.collectives,
            **_multiplied(self.collectives, factor, "inside_s", "between_s", "hop_s", "send_s"),
        )
        times = ("token_s", "fixed_s", "sync_s", "episode_s", "publish_s", "gather_s")
        return replace(self, collectives=collectives, **_multiplied(self, factor, *times))

    @property
    def whole_publish_s(self) -> float:
        sent_s = self.collectives.send_s / -(-self.ranks // NODE) if self.collectives else 0.0
        return self.publish_s + sent_s + (self.gather_s if self.ranks > 1 else 0.0)


def _multiplied(speed: object, factor: float, *names: str) -> dict[str, Any]:
    return {name: factor * getattr(speed, name) for name in names}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that all parts share, if they share one."""

    cores: float
    request_cpu_s: float = 0.0
    """CPU time of the main process for each model call: agent, gateway, books. One thread does it."""
    others: float = 0.0
    """Threads of other programs that compute all the time."""
