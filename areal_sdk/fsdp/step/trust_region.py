"""A bound on how far one update moves the policy, and a learning rate that follows the bound.

Before and after an update a sample of the step's sequences is computed, without a gradient. The KL of the
policy after the update from the policy before it is estimated from their sampled tokens. Beyond the bound
the update is scaled back. The same rule holds on all ranks, because all ranks see the same sums.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.examples import Example
from areal_sdk.algorithms.objectives import masked
from areal_sdk.fsdp.collectives import Ranks

SHARE = 1 / 16
"""Share of the sampled tokens that measure an update."""
NUM_TERMS = 128
"""Trained tokens that a sample has at least, where the minibatch has so many."""
SIBLINGS = 2
"""Sequences that are taken from a group at once."""
PER_TOKEN = 0.01
"""Maximum KL in nats a token, however short an episode is: beyond it runs of few tokens fell."""
FACTOR = 1.5
"""The learning rate rises and falls by this factor."""
FAR_BELOW = 0.25
"""Share of the bound below which the learning rate rises: one rise leaves the KL well within the bound."""
REMEMBERED = 3
"""Steps that must all be far below the bound before the rate rises: a sample may have missed the tokens that moved."""
LARGEST_RISE = 1e3
"""Times the first learning rate: an update that cannot move the policy must not let the rate rise for ever."""
ENOUGH_SPREAD = 0.25
"""Share of the groups whose rewards must differ for the rate to rise: few groups bring more noise than gradient."""
TRIES = 6
"""Scales that are tried before an update is taken back as a whole."""
LEAST = 1e-6
"""Share of the bound below which a KL is none: its logarithm says nothing."""
FILLED, CLOSE = 0.4, 1.25
"""Shares of the bound between which a scaled update is accepted: the estimate is no better than that."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences that tell how far an update moved the policy, as this rank sees them."""

    batches: list[Batch]
    tokens_per_episode: float
    """Trained tokens, on average over the sequences of the minibatch."""


def sampled(examples: Sequence[Example], *, seed: int) -> list[int]:
    """The indices of the sequences that are computed again, whatever the order of `examples`.

    Several siblings of a group are taken together, because they share the computation of their prompt.
    """
    keys = [crc32(example.target_tokens.astype(np.int64).tobytes(), seed) for example in examples]
    siblings: dict[int, list[int]] = {}
    for index in sorted(range(len(examples)), key=keys.__getitem__):
        siblings.setdefault(examples[index].group, []).append(index)
    order = sorted(
        (place // SIBLINGS, keys[members[0]], place, index)
        for members in siblings.values()
        for place, index in enumerate(members)
    )
    left = max(NUM_TERMS, SHARE * sum(len(example.targets_T) for example in examples))
    chosen: list[int] = []
    for *_, index in order:
        if left <= 0:
            break
        chosen.append(index)
        left -= len(examples[index].targets_T)
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Moved:
    """What one update did to the policy."""

    kl: float
    """Nats a token, of the policy after the update from the policy before it."""
    kl_behaviour: float
    """Nats a token, of the policy after the update from the policies that sampled."""
    share: float
    """Share of the update that was left."""
    filled: float
    """The KL as a share of the bound."""


def summary(moves: Sequence[Moved]) -> dict[str, float]:
    """The metrics of a step's updates."""
    if not moves:
        return {}
    return {
        "kl_step": mean(moved.kl for moved in moves),
        "kl_behaviour_after": moves[-1].kl_behaviour,
        "update_share": mean(moved.share for moved in moves),
    }


@dataclass(slots=True)
class UpdateLimit:
    """The bound, and the factor by which the learning rate has followed it."""

    per_episode: float
    """Nats an episode. 0: no bound."""
    is_followed: bool
    """Whether the learning rate follows."""
    factor: float = 1.0
    num_calm: int = 0
    """Steps in a row that were far below the bound."""

    def bound(self, tokens_per_episode: float) -> float:
        """The maximum KL of an update, in nats a token.

        >>> UpdateLimit(0.3, is_followed=True).bound(100.0)
        0.003
        """
        if not self.per_episode:
            return math.inf
        return min(PER_TOKEN, self.per_episode / tokens_per_episode)

    def hold(
        self, update: "Update", measure: Callable[[], tuple[float, float]], *, bound: float
    ) -> Moved:
        """Scale `update` back until its KL is within `bound`. `measure` returns the KL, and the KL to the samplers."""
        share, power = 1.0, 2.0  # the KL of a small update grows with its square
        kl, kl_behaviour = measure()
        if kl <= bound:
            return Moved(kl, kl_behaviour, share, kl / bound)
        for _ in range(TRIES):
            if FILLED <= kl / bound <= CLOSE:
                break
            found = max(kl, LEAST * bound)  # rounded, a small part of an update may change nothing
            scale = min(1.0 / share, (bound / found) ** (1.0 / power)) if math.isfinite(kl) else 0.1
            if scale == 1.0:
                break
            update.scale(share, share * scale)
            share *= scale
            kl, kl_behaviour = measure()
            if math.isfinite(found) and math.isfinite(kl):
                slope = math.log(max(kl, LEAST * bound) / found) / math.log(scale)
                power = min(4.0, max(0.5, slope))
        if not kl <= CLOSE * bound:
            update.scale(share, 0.0)
            share, (kl, kl_behaviour) = 0.0, measure()
        return Moved(kl, kl_behaviour, share, kl / bound)

    def follow(self, moves: Sequence[Moved], *, spread: float, is_full: bool) -> None:
        """Set the factor after the updates of a step.

        `spread` is the share of the groups whose rewards differ. `is_full`: neither a warm-up nor a schedule lowers
        the learning rate.
        """
        if not (self.is_followed and self.per_episode and moves):
            return
        is_calm = max(moved.filled for moved in moves) < FAR_BELOW
        self.num_calm = self.num_calm + 1 if is_calm else 0
        if any(moved.share < 1.0 for moved in moves):
            self.factor /= FACTOR
        elif is_full and self.num_calm >= REMEMBERED and spread >= ENOUGH_SPREAD:
            self.factor = min(self.factor * FACTOR, LARGEST_RISE)


@dataclass(frozen=True, slots=True)
class Update:
    """The last update of AdamW, which its moments still tell: it needs no copy of the weights."""

    optimizer: torch.optim.AdamW
    parameters: Sequence[nn.Parameter]
    """The parameters that had a gradient."""

    @torch.no_grad()
    def scale(self, share: float, to: float) -> None:
        """Leave `to` of the update, of which `share` is there now."""
        updated = {id(parameter) for parameter in self.parameters}
        for group in self.optimizer.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if id(parameter) not in updated:
                    continue
                state = self.optimizer.state[parameter]
                step = state["step"].item()
                root = state["exp_avg_sq"].sqrt().div_(math.sqrt(1.0 - beta2**step))
                direction = state["exp_avg"] / root.add_(group["eps"])
                rate, decay = group["lr"], group["lr"] * group["weight_decay"]
                change = rate / (1.0 - beta1**step)
                # w = w0 (1 - share * decay) - share * change * direction; the same with `to`.
                kept = (1.0 - to * decay) / (1.0 - share * decay)
                parameter.mul_(kept).add_(direction, alpha=change * (share * kept - to))


def divergence(
    before: Sequence[Tensor], after: Sequence[Tensor], probe: Probe, ranks: Ranks
) -> tuple[float, float]:
    """The KL from the policy before the update, and from those that sampled, in nats a token. A collective.

    `before` and `after` have the logprobs of each batch. Both KLs are estimated as r - 1 - log r (k3, Schulman 2020),
    whose mean over samples of the denominator is the KL and which is never negative.
    """
    totals = {"kl": 0.0, "behaviour": 0.0, "count": 0.0}
    for batch, before_T, after_T in zip(probe.batches, before, after, strict=True):
        mask_T = batch.mask_T
        for name, of_T in (("kl", before_T), ("behaviour", batch.behaviour_T)):
            log_ratio_T = masked(after_T.float() - of_T, mask_T)
            totals[name] += (torch.expm1(log_ratio_T.clamp(max=20.0)) - log_ratio_T).sum().item()
        totals["count"] += mask_T.sum().item()
    sums = ranks.sum(totals)
    return sums["kl"] / sums["count"], sums["behaviour"] / sums["count"]
