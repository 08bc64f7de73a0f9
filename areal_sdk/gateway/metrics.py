"""Counts and durations of what the gateway did, in Prometheus' text format."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from areal_sdk.types import Turn

_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of a latency histogram."""


@dataclass(slots=True)
class GatewayMetrics:
    """Plain counters: the event loop is the only writer."""

    num_turns: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_sampled_tokens: int = 0
    num_running: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    excluded: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Refusals and faults by their code."""
    durations: Counter[float] = field(default_factory=Counter)
    """Number of turns, by the upper bound of the bucket of their duration."""
    total_duration_s: float = 0.0

    def observe(self, turn: Turn, *, num_cached: int) -> None:
        """Count a recorded turn."""
        self.num_turns += 1
        self.num_prompt_tokens += turn.num_prompt
        self.num_cached_tokens += num_cached
        self.num_sampled_tokens += len(turn.output_tokens)
        if turn.fork is not None:
            self.forks[turn.fork] += 1
        if turn.excluded is not None:
            self.excluded[turn.excluded] += len(turn.output_tokens)
        self.total_duration_s += turn.duration_s
        self.durations[next((b for b in _BUCKETS_S if turn.duration_s <= b), float("inf"))] += 1

    def to_json(self) -> dict[str, Any]:
        """All counts, for `add` in another process."""
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: {str(key): number for key, number in value.items()}
            if isinstance(value, Counter)
            else value
            for name, value in counts.items()
        }

    def add(self, counts: Mapping[str, Any]) -> None:
        """Add the counts of another process."""
        for name, value in counts.items():
            if name == "durations":
                self.durations.update({float(bound): count for bound, count in value.items()})
            elif isinstance(value, Mapping):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def render(self, num_sessions: int, version: int) -> str:
        lines = [
            *_simple("gauge", "sessions", "Open sessions", num_sessions),
            *_simple("gauge", "running", "Completions being sampled", self.num_running),
            *_simple("gauge", "weights_version", "Version that is served", version),
            *_simple("counter", "turns_total", "Recorded turns", self.num_turns),
            *_simple("counter", "prompt_tokens_total", "Prompt tokens", self.num_prompt_tokens),
            *_simple("counter", "cached_tokens_total", "Of these reused", self.num_cached_tokens),
            *_simple("counter", "sampled_tokens_total", "Sampled tokens", self.num_sampled_tokens),
            *_labelled("forks_total", "Branches by reason", "reason", self.forks),
            *_labelled("excluded_tokens_total", "Tokens not trained", "reason", self.excluded),
            *_labelled("errors_total", "Refused and failed requests", "code", self.errors),
            *self._histogram("turn_seconds", "Duration of a turn"),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str, text: str) -> list[str]:
        lines = [f"# HELP areal_sdk_{name} {text}.", f"# TYPE areal_sdk_{name} histogram"]
        total = 0
        for bound in (*_BUCKETS_S, float("inf")):
            total += self.durations[bound]
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'areal_sdk_{name}_bucket{{le="{label}"}} {total}')
        return [
            *lines,
            f"areal_sdk_{name}_sum {self.total_duration_s:.6f}",
            f"areal_sdk_{name}_count {total}",
        ]


def _simple(kind: str, name: str, text: str, value: int) -> list[str]:
    return [
        f"# HELP areal_sdk_{name} {text}.",
        f"# TYPE areal_sdk_{name} {kind}",
        f"areal_sdk_{name} {value}",
    ]


def _labelled(name: str, text: str, label: str, counts: Counter[str]) -> list[str]:
    head = [f"# HELP areal_sdk_{name} {text}.", f"# TYPE areal_sdk_{name} counter"]
    return head + [f'areal_sdk_{name}{{{label}="{k}"}} {n}' for k, n in sorted(counts.items())]
