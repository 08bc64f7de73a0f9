"""The metrics of a step: sums over its micro-batches, staleness, and where logprobs disagree."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.objectives import Loss, masked
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.trajectory import TrajectoryGroup

LAGS = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3_4": (3, 4), "5_8": (5, 8), "more": (9, math.inf)}
"""Ranges of versions between the sampler of a token and the start of its step."""

COMPARED = 8
"""Size of a group that is drawn from episodes without siblings."""

Verdict = tuple[float, tuple[float | None, ...]]
"""Reward of an episode, and rewards of its turns."""


@dataclass(slots=True)
class Meter:
    """Sums and maxima over the micro-batches of a step, and CPU-seconds by phase."""

    totals: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    """Number of terms in each of `sums`, to which only some terms of the step belong."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _unread: list[tuple[Tensor, dict[str, float], str, float]] = field(default_factory=list)

    def note(self, number: Tensor, totals: dict[str, float], name: str, divisor: float = 1) -> None:
        """Have the next `read` add the number, divided, to one of `totals`: each read waits for the device."""
        self._unread.append((number.detach(), totals, name, divisor))

    def read(self) -> None:
        if self._unread:
            values = torch.stack([number for number, *_ in self._unread]).tolist()
            for value, (_, totals, name, divisor) in zip(values, self._unread, strict=True):
                totals[name] = totals.get(name, 0.0) + value / divisor
        self._unread.clear()

    def add(self, loss: Loss, totals: Mapping[str, Tensor]) -> None:
        for name, value in (*loss.totals.items(), *totals.items()):
            self.note(value, self.totals, name)
        for name, value in loss.maxima.items():
            self.maxima[name] = torch.maximum(value, self.maxima.get(name, value)).detach()

    def add_pairs(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (total, count) in pairs.items():
            self.note(total, self.sums, name)
            self.note(count, self.counts, name)

    def reduce(self, ranks: Ranks, *, num_terms: int) -> dict[str, float]:
        """Means and maxima over all ranks. A collective."""
        maxima: dict[str, float] = {}
        for name, value in self.maxima.items():
            self.note(value, maxima, name)
        self.read()
        means = {name: total / num_terms for name, total in ranks.sum(self.totals).items()}
        square = means.pop("weight_square", 0.0)
        if square:
            means["ess"] = means["weight"] ** 2 / square
        sums, counts = ranks.sum(self.sums), ranks.sum(self.counts)
        apart = {name: sums[name] / count for name, count in counts.items() if count}
        return {**means, **ranks.max(maxima), **apart}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.process_time() - began

    def spent(self, ranks: Ranks) -> dict[str, float]:
        """CPU-seconds of all ranks, and the seconds since the step began on this rank. A collective."""
        cpu_s = {f"cpu_{name}_s": seconds for name, seconds in self.cpu_s.items()}
        return {
            **ranks.sum({**cpu_s, "cpu_s": sum(cpu_s.values())}),
            "wall_s": time.monotonic() - self.began,
        }


def disagreement(start_T: Tensor, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """|log p - log b| by cause, as sums and counts; `start_T` are logprobs before any update.

    At lag 0 both come from the same weights, so they differ only in how they were computed: overall, in the first and
    last tokens of turns, and away from temperature 1. At other lags the policy has moved.
    """
    distance_T = masked(start_T.detach() - batch.behaviour_T, batch.mask_T).abs()
    fresh_T = batch.mask_T & (batch.lags_T == 0)
    causes = {
        f"dlogp_lag_{name}": batch.mask_T & (batch.lags_T >= low) & (batch.lags_T <= high)
        for name, (low, high) in LAGS.items()
    }
    causes["dlogp_boundary"] = fresh_T & batch.boundary_T
    causes["dlogp_temperature"] = fresh_T & (batch.temperatures_R[batch.rows_T] != 1.0)
    return {name: (masked(distance_T, of_T).sum(), of_T.sum()) for name, of_T in causes.items()}


def describe(groups: Sequence[TrajectoryGroup], *, version: int) -> dict[str, float]:
    """Counts, staleness and spread of the groups."""
    trajectories = [t for group in groups for t in group.trajectories]
    versions = [np.zeros(0, np.int32), *(t.versions[t.loss_mask] for t in trajectories)]
    lags = version - np.concatenate(versions)
    count = len(lags)
    newest = version - int(lags.min(initial=0))
    if newest > version:
        raise ValueError(f"a token of version {newest} in a step that starts from {version}")
    shares = {
        f"staleness_share_{name}": float(((low <= lags) & (lags <= high)).mean()) if count else 0.0
        for name, (low, high) in LAGS.items()
    }
    return {
        "num_groups": float(len(groups)),
        "num_trajectories": float(len(trajectories)),
        "num_tokens": float(sum(len(t.tokens) for t in trajectories)),
        "num_counted": float(count),
        "spread": spread(groups) if groups else 0.0,
        "staleness_mean": float(lags.mean()) if count else 0.0,
        "staleness_max": float(lags.max(initial=0)),
        **shares,
    }


def spread(groups: Sequence[TrajectoryGroup]) -> float:
    """The share of the groups whose rewards differ, whatever an algorithm makes of them.

    Episodes without siblings count as groups of eight that were drawn from the episodes of their source.
    """
    differing = 0.0
    alone: defaultdict[str, Counter[Verdict]] = defaultdict(Counter)
    for group in groups:
        verdicts: dict[str, Verdict] = {
            t.episode_id: (t.reward, t.turn_rewards) for t in group.trajectories
        }
        if len(verdicts) == 1:
            alone[group.source].update(verdicts.values())
        else:
            differing += len(set(verdicts.values())) > 1
    for counts in alone.values():
        equal = sum((count / counts.total()) ** COMPARED for count in counts.values())
        differing += counts.total() * (1.0 - equal)
    return differing / len(groups)
