"""A bound on how far one update moves the policy, and a learning rate that follows the bound: a rate that was set is
the highest, and "auto" rises as far as it may.

An update is measured (`probe.py`) and scaled back if it is beyond the bound. The rate falls with it; the first
rate of "auto" falls if most of the last steps were held. The same rule holds on all ranks, because all ranks see the
same sums.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import nn

from areal_sdk.config import TrainerSection

PER_TOKEN = 0.01
"""Maximum KL in nats a token, however short an episode is. Beyond it, runs with short episodes collapsed."""
OF_A_SEQUENCE = 5.0
"""Maximum KL of one sequence as a multiple of the bound, which holds the mean: an answer that few prompts share can be
lost while the mean hardly moves."""
FACTOR = 1.5
"""Factor by which the learning rate rises, and by which it falls at least."""
SLOW = 1.2
"""Factor by which the rate rises beyond what the last held update had room for: most updates of a step size may be
calm because rewards are noise, and the next one, whose gradients agree, moves a thousand times as much."""
RECENT = 5
"""Number of steps of which more than half are held before the first rate of "auto" falls. Among calm steps a single one
may jump at a rate that is right; it is scaled back, and the rate stays. A rate above the first was only ever calm, and
its first jump says that it rose too far. A rate that was set may be far too high."""
LARGEST_CUT = 0.25
"""Least factor by which the rate falls in a step, however little of an update was left."""
FAR_BELOW = 0.25
"""Share of the bound below which the learning rate rises: one rise leaves the KL well within the bound."""
REMEMBERED = 3
"""Number of steps that must all be far below the bound before the rate rises, since a sample may have missed the
tokens that moved."""
LARGEST_RISE = 1e3
"""Maximum of the rate as a multiple of the first rate, so that updates that cannot move the policy do not raise it
for ever."""
ENOUGH_SPREAD = 0.25
"""Share of the groups whose rewards must differ, or a calm step does not count: few groups bring more noise than gradient."""
OF_WIDEST = 0.75
"""Share of the widest spread so far that a calm step must have to count. In a nearly solved run few groups bring a
gradient. Their updates move little, and a rate that rose meanwhile was far too large for the next full batch."""
TRIES = 6
"""Maximum number of shares of an update that are tried. The largest within the bound stays, or none of the update."""
LEAST = 1e-6
"""Share of the bound below which a KL counts as none, since its logarithm would mean nothing."""
TRIFLE = 0.01
"""Share of an update that hardly moves the policy, yet changes the last bits of weights."""
FILLED, CLOSE = 0.4, 1.25
"""Shares of the bound between which a scaled update is accepted: the estimate is no better than that."""


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of the policy from the one before an update, in nats a token."""

    kl: float
    """Mean KL over all tokens that were measured."""
    kl_behaviour: float
    """Mean KL of the policy from the policies that sampled."""
    kl_sequence: float
    """Mean KL over the sequence that moved most."""

    @property
    def judged(self) -> float:
        """The KL that the bound holds."""
        return max(self.kl, self.kl_sequence / OF_A_SEQUENCE)  # of NaN and a number, the first

    def moved(self, share: float, bound: float) -> "Moved":
        """The effect of an update of which `share` was kept."""
        return Moved(self.kl, self.kl_behaviour, self.kl_sequence, share, self.judged / bound)


@dataclass(frozen=True, slots=True)
class Moved(Distance):
    """The effect of one update on the policy."""

    share: float
    """Share of the update that was kept."""
    filled: float
    """The judged KL, as a share of the bound."""


def summary(moves: Sequence[Moved]) -> dict[str, float]:
    """The metrics of a step's updates."""
    if not moves:
        return {}
    return {
        "kl_step": sum(moved.kl for moved in moves),
        "kl_behaviour_after": moves[-1].kl_behaviour,
        "kl_sequence": max(moved.kl_sequence for moved in moves),
        "update_share": mean(moved.share for moved in moves),
    }


@dataclass(slots=True)
class Search:
    """The search for the share of an update whose KL fills the bound, between a share within and a share beyond.

    >>> search = Search(bound=0.01, kl_beyond=0.04)
    >>> search.next()
    0.5
    >>> search.add(0.5, 0.0025)
    >>> round(search.next(), 4)  # four times the KL is two steps of four: half of the way, in logarithms
    0.7071
    """

    bound: float
    kl_beyond: float
    """KL of the least share that was beyond the bound."""
    beyond: float = 1.0
    kl_within: float = 0.0
    """KL of the largest share that was within the bound."""
    within: float = 0.0
    power: float = 2.0
    """Power of the share with which the KL grows: 2 for a small update."""

    def add(self, share: float, kl: float) -> None:
        """Take the KL that was measured after this share of the update."""
        if kl <= self.bound:
            self.within, self.kl_within = share, kl
            return
        if math.isfinite(kl) and math.isfinite(self.kl_beyond):
            slope = math.log(kl / self.kl_beyond) / math.log(share / self.beyond)
            self.power = min(4.0, max(0.5, slope))
        self.beyond, self.kl_beyond = share, kl

    def next(self) -> float:
        """The share to try."""
        if not math.isfinite(self.kl_beyond):
            return math.sqrt(self.within * self.beyond) or 0.1 * self.beyond
        if not self.within:
            return self.beyond * math.pow(self.bound / self.kl_beyond, 1.0 / self.power)
        # Rounded, a small part of an update may change nothing. The logarithm of 0 would mean nothing either.
        kl_within = max(self.kl_within, LEAST * self.bound)
        part = math.log(self.bound / kl_within) / math.log(self.kl_beyond / kl_within)
        return self.within * math.pow(self.beyond / self.within, part)


@dataclass(slots=True)
class UpdateLimit:
    """The bound, and the factor by which the learning rate has followed it."""

    per_episode: float
    """Nats an episode. 0: no bound."""
    may_rise: bool
    """Whether the learning rate may rise above `first_rate`. In any case it falls with every step that the bound held."""
    first_rate: float = 1.0
    """The rate that `factor` multiplies. If a resume changes it, `factor` is scaled: the run keeps its rate."""
    factor: float = 1.0
    """Factor by which the learning rate has followed the bound. Steps use `rate_factor`, which caps it."""
    roomy: float = LARGEST_RISE
    """Factor that the last held step left room for: the rate rises by `FACTOR` up to it, and by `SLOW` beyond it."""
    num_calm: int = 0
    """Steps in a row that were far below the bound."""
    recent: int = 0
    """A bit for each of the last steps, 1 if the step was held."""
    widest: float = 0.0
    """Largest share of groups with differing rewards that a step had so far."""
    tightness: float = 1.0
    """Divisor of the bound, which the guard doubles when weights are put back."""
    rounds: bool = True
    """Whether the last bit of the weights changes all logprobs: so in bfloat16. In float32 that bit changes nothing."""
    noise: float | None = None
    """KL, in nats a token, that is measured if nothing but that bit changed."""
    sequence_noise: float = 0.0
    """The same KL, of the sequence that moved most."""

    @property
    def state(self) -> dict[str, float | None]:
        """The state that checkpoints keep."""
        return {
            "first_rate": self.first_rate,
            "factor": self.factor,
            "roomy": self.roomy,
            "num_calm": self.num_calm,
            "recent": self.recent,
            "widest": self.widest,
            "tightness": self.tightness,
            "noise": self.noise,
            "sequence_noise": self.sequence_noise,
        }

    @state.setter
    def state(self, saved: Mapping[str, Any]) -> None:
        scale = saved.get("first_rate", self.first_rate) / self.first_rate
        self.factor = saved.get("factor", 1.0) * scale
        self.roomy = saved.get("roomy", LARGEST_RISE) * scale
        self.num_calm = saved.get("num_calm", 0)
        self.recent = int(saved.get("recent", 0))
        self.widest = saved.get("widest", 0.0)
        self.tightness = saved.get("tightness", 1.0)
        if self.rounds:
            self.noise = saved.get("noise")
            self.sequence_noise = saved.get("sequence_noise", 0.0)

    @property
    def rate_factor(self) -> float:
        """The rate as a multiple of the first rate; at most 1 unless the rate is "auto". `factor` may be larger, if a
        run with a rate of its own goes on from a checkpoint of a run with "auto"."""
        return min(self.factor, self._highest) if self.per_episode else 1.0

    @property
    def _highest(self) -> float:
        return LARGEST_RISE if self.may_rise else 1.0

    @property
    def _least_spread(self) -> float:
        """Least share of differing groups with which a calm step counts. For a rate that the user set, any share will
        do: the user vouched for the rate, and where few groups ever differ it would never come back."""
        return max(ENOUGH_SPREAD, OF_WIDEST * self.widest) if self.may_rise else LEAST

    def bound(self, tokens_per_episode: float) -> float:
        """The maximum KL of an update, in nats a token.

        >>> UpdateLimit(0.3, may_rise=True).bound(100.0)
        0.003
        """
        per_episode = self.per_episode
        if not per_episode and self.tightness > 1.0:
            # The guard has put weights back: without any bound the same would happen again.
            per_episode = TrainerSection().trust_region
        if not per_episode:
            return math.inf
        return min(PER_TOKEN, per_episode / tokens_per_episode) / self.tightness

    def tighten(self) -> None:
        """Halve the bound, because the policy collapsed although its updates kept within it."""
        self.tightness *= 2.0

    def hold(self, update: "Update", measure: Callable[[], Distance], *, bound: float) -> Moved:
        """Scale `update` back until its KL is within `bound`."""
        share = 1.0
        found = measure()
        if bound == math.inf:
            return found.moved(share, bound)
        if self.rounds:
            self._learn_noise(update, measure, found, bound)
        found = self._without_noise(found)
        if found.judged <= bound:
            return found.moved(share, bound)
        search = Search(bound, found.judged)
        for _ in range(TRIES):
            if FILLED <= found.judged / bound <= CLOSE:
                break
            to = search.next()
            update.scale(share, to)
            found = self._without_noise(measure())
            search.add(to, found.judged)
            share = to
        for to in (search.within, 0.0):  # rounded, the same share may move more than it did
            if found.judged <= CLOSE * bound:
                break
            update.scale(share, to)
            found = self._without_noise(measure())
            share = to
        return found.moved(share, bound)

    def _learn_noise(
        self, update: "Update", measure: Callable[[], Distance], found: Distance, bound: float
    ) -> None:
        """Measure what rounding alone changes, with a trifle of the update: once, and if `found` is beyond `bound`."""
        kl = found.judged
        is_first = self.noise is None
        if math.isfinite(kl) and (is_first or self._without_noise(found).judged > bound):
            trifle = TRIFLE if kl <= bound else TRIFLE * bound / kl
            update.scale(1.0, trifle)
            still = measure()
            self.noise, self.sequence_noise = still.kl, still.kl_sequence
            update.scale(trifle, 1.0)
        self.noise = min(self.noise or 0.0, found.kl)  # and as it was if the KL is not a number
        self.sequence_noise = min(self.sequence_noise, found.kl_sequence)

    def _without_noise(self, found: Distance) -> Distance:
        """The distance without the noise, which is measured even if nothing moved. A KL of NaN stays NaN."""
        kl = found.kl - min(found.kl, self.noise or 0.0)
        kl_sequence = found.kl_sequence - min(found.kl_sequence, self.sequence_noise)
        return Distance(kl, found.kl_behaviour, kl_sequence)

    def follow(
        self, moves: Sequence[Moved], *, spread: float, schedule: float, is_warm: bool
    ) -> None:
        """Set the factor after the updates of a step.

        `spread` is the share of the groups whose rewards differ (`metrics.py`). `schedule` is the part of the rate that
        the schedule left: the KL of a small update falls with its square. `is_warm`: the warm-up is over.
        """
        if not (self.per_episode and moves):
            return
        self.widest = max(self.widest, spread)
        is_held = any(moved.share < 1.0 for moved in moves)
        self.recent = (self.recent << 1 | is_held) % 2**RECENT
        if is_held:
            self.num_calm = 0
            self.roomy = self.rate_factor
            is_first = self.may_rise and self.rate_factor <= 1.0
            if not is_first or 2 * self.recent.bit_count() > RECENT:
                left = min(moved.share for moved in moves)
                self.roomy *= left
                self.factor = self.rate_factor * min(1 / FACTOR, max(left, LARGEST_CUT))
            return
        is_calm = max(moved.filled for moved in moves) < FAR_BELOW * schedule**2
        if not (is_calm and is_warm):
            self.num_calm = 0
        elif spread >= self._least_spread:
            self.num_calm += 1
            if self.num_calm >= REMEMBERED:
                rise = FACTOR if self.factor * FACTOR <= self.roomy else SLOW
                # A factor of a run at "auto" may be higher: it is kept for a resume at "auto".
                self.factor = max(self.factor, min(self.factor * rise, self._highest))


@dataclass(frozen=True, slots=True)
class Update:
    """The last update of AdamW. It follows from the moments, so no copy of the weights is needed to scale it."""

    optimizer: torch.optim.AdamW
    parameters: Sequence[nn.Parameter]
    """The parameters that had a gradient."""

    @torch.no_grad()
    def scale(self, share: float, to: float) -> None:
        """Scale the update to the share `to`. At present the weights have the share `share` of it."""
        of_all = [self.optimizer.state[parameter]["step"] for parameter in self.parameters]
        steps = dict(zip(map(id, self.parameters), torch.stack(of_all).tolist(), strict=True))
        for group in self.optimizer.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if id(parameter) not in steps:
                    continue
                state, step = self.optimizer.state[parameter], steps[id(parameter)]
                root = state["exp_avg_sq"].sqrt().div_(math.sqrt(1.0 - beta2**step))
                root.add_(group["eps"])
                rate, decay = group["lr"], group["lr"] * group["weight_decay"]
                change = rate / (1.0 - beta1**step)
                # w = w0 (1 - share * decay) - share * change * exp_avg / root; the same with `to`.
                kept = (1.0 - to * decay) / (1.0 - share * decay)
                added = change * (share * kept - to)
                parameter.mul_(kept).addcdiv_(state["exp_avg"], root, value=added)
