"""Measures how far an update moves the policy, on a sample of the minibatch's sequences.

The sample is computed before and after the update, without a gradient, in the same rows. So what differs comes
from the update. Sequences of groups without an advantage are in the sample too: an update moves the policy
on their tokens, and nothing else sees it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.objectives import masked, sequence_means
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels.head import Statistic
from areal_sdk.fsdp.step.metrics import Meter
from areal_sdk.fsdp.step.trust_region import Distance
from areal_sdk.trajectory import TrajectoryGroup

SHARE = 1 / 64
"""Share of the sampled tokens that measure an update."""
NUM_TERMS = 128
"""Fewest trained tokens of a sample, if the minibatch has as many. A sample has whole sequences, so it comes near
this number."""
SIBLINGS = 2
"""Number of sequences that are taken from a group together."""
LIKELIEST = 256
"""Number of tokens of a distribution that are kept one by one."""
LARGEST = 20.0
"""Maximum logarithm of a ratio before `exp`."""
SHORTEST = 10.0
"""Least number of tokens over which a sequence's KL is averaged: in a short answer one changed word is no collapse."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences that tell how far an update moved the policy, as this rank sees them."""

    batches: list[Batch]
    tokens_per_episode: float
    """Trained tokens in all branches of an episode, on average over the minibatch."""


def sampled(groups: Sequence[TrajectoryGroup], *, seed: int) -> list[TrajectoryGroup]:
    """The sample of `groups`, which does not depend on the order of groups and siblings. It is drawn by name and not
    by content, so that equal answers are in the sample as often as others. Several siblings of a group are taken
    together, because they share the computation of their prompt."""
    order: list[tuple[int, bytes, int, int, int]] = []
    for number, group in enumerate(groups):
        branches: Counter[str] = Counter()
        drawn: list[tuple[bytes, int]] = []
        for index, t in enumerate(group.trajectories):
            branches[t.episode_id] += 1
            if t.num_trained:
                drawn.append((_draw(seed, group.id, t.episode_id, branches[t.episode_id]), index))
        of_group = _draw(seed, group.id)
        order += [
            (place // SIBLINGS, of_group, place, number, index)
            for place, (_, index) in enumerate(sorted(drawn))
        ]
    left = max(NUM_TERMS, SHARE * sum(t.num_trained for g in groups for t in g.trajectories))
    chosen: dict[int, list[int]] = {}
    for *_, number, index in sorted(order):
        count = groups[number].trajectories[index].num_trained
        if chosen and left < count / 2:
            break
        chosen.setdefault(number, []).append(index)
        left -= count
    return [
        replace(group, trajectories=tuple(group.trajectories[i] for i in sorted(chosen[number])))
        for number, group in enumerate(groups)
        if number in chosen
    ]


def _draw(*name: object) -> bytes:
    """A pseudo-random number that is the same on every rank."""
    return blake2b(repr(name).encode(), digest_size=8).digest()


class Likeliest:
    """The distributions that a policy has on the terms of a batch: the likeliest tokens of each, and all others together.

    So a position takes 3 KB, whatever the vocabulary. The KL between two such partitions is a lower bound of
    the KL over the vocabulary. It misses only what moves from one unlikely token to another.

    Shapes: V vocabulary, K likeliest tokens, r rows that are seen at once.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, Tensor]] = []
        """Tokens (r, K), and logprobs of them and of the rest (r, K + 1)."""

    def keep(self, logprobs_rV: Tensor) -> Tensor:
        """A `Statistic` that keeps the distributions, and returns 0 for each."""
        tokens_rK = logprobs_rV.topk(min(LIKELIEST, logprobs_rV.shape[1]), sorted=False).indices
        self._pieces.append((tokens_rK, _parts(logprobs_rV, tokens_rK)))
        return logprobs_rV.new_zeros(len(logprobs_rV))

    def divergence(self) -> Statistic:
        """A `Statistic` of the same rows: the KL from the distributions that were kept."""
        pieces = iter(self._pieces)

        def of(logprobs_rV: Tensor) -> Tensor:
            tokens_rK, before_rK = next(pieces)
            ratio_rK = _parts(logprobs_rV, tokens_rK) - before_rK
            # p (q / p - 1 - log q / p): the sum of the first two is 0, and each term is exact where it is small.
            terms_rK = before_rK.exp() * (torch.expm1(ratio_rK.clamp(max=LARGEST)) - ratio_rK)
            return terms_rK.sum(-1)

        return of


def _parts(logprobs_rV: Tensor, tokens_rK: Tensor) -> Tensor:
    """Logprobs of the tokens, and of all others together. The others count as 1e-5 at least, the limit of float32."""
    chosen_rK = logprobs_rV.gather(1, tokens_rK)
    rest_r1 = torch.log1p(-chosen_rK.exp().sum(-1, keepdim=True).clamp(max=1.0 - 1e-5))
    return torch.cat([chosen_rK, rest_r1], -1)


class Movement:
    """The policy on the sequences of a probe before an update, for comparison with the policy after it."""

    def __init__(
        self,
        probe: Probe,
        policy: Callable[..., tuple[Tensor, Tensor]],
        autocast: Callable[[], AbstractContextManager[Any]],
        ranks: Ranks,
    ) -> None:
        """`policy(batch, statistic=...)` computes with the weights that it has at the time. A collective."""
        self.probe = probe
        self._policy = policy
        self._autocast = autocast
        self._ranks = ranks
        self._before = [Likeliest() for _ in probe.batches]
        for batch, before in zip(probe.batches, self._before, strict=True):
            self._compute(batch, before.keep)

    def __call__(self) -> Distance:
        """The distance of the present policy from the one before, and from the samplers. A collective. Of a sampler
        only the logprobs of sampled tokens are known, so its KL is estimated as the mean of r - 1 - log r over them,
        with r = policy / sampler (k3, Schulman 2020)."""
        meter, totals, largest = Meter(), dict[str, float](), dict[str, float]()
        pairs = zip(self.probe.batches, self._before, strict=True)
        for number, (batch, before) in enumerate(pairs):
            after_T, kl_T = self._compute(batch, before.divergence())
            mask_T = batch.mask_T
            kl_T = masked(kl_T, mask_T)
            log_ratio_T = masked(after_T.float() - batch.behaviour_T, mask_T)
            k3_T = torch.expm1(log_ratio_T.clamp(max=LARGEST)) - log_ratio_T
            meter.note(kl_T.sum(), totals, "kl")
            meter.note(k3_T.sum(), totals, "behaviour")
            meter.note(mask_T.sum(), totals, "count")
            means_T = sequence_means(kl_T, batch, shortest=SHORTEST)
            meter.note(means_T.max(), largest, str(number))
        meter.read()
        sums = self._ranks.sum(totals)
        return Distance(
            kl=sums["kl"] / sums["count"],
            kl_behaviour=sums["behaviour"] / sums["count"],
            kl_sequence=self._ranks.max({"kl": max(largest.values())})["kl"],
        )

    def _compute(self, batch: Batch, statistic: Statistic) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), self._autocast():
            return self._policy(batch, statistic=statistic)
