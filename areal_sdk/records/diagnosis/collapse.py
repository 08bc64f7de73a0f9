"""Whether a run has lost what its policy could do, told batch by batch; which weights are worth keeping.

    a batch -> on trial? -> fallen below the kept weights? -> candidate proved? -> better than the kept weights?

Pure: a live run and a recorded one give the same findings. A batch is seen before it is trained, so going back loses
no step. Batches are compared, never single episodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import fmean, median
from typing import Any, Self

from areal_sdk.records.diagnosis.course import ENTROPY, NORMAL, number
from areal_sdk.records.diagnosis.seen import OF_STEPS, Seen, Standing

WORSE = 3.0
"""Number of standard errors that the last weights of a run must be below the kept weights to be clearly worse."""
LOST = {3: 0.5, 6: 0.5, 12: 0.4, 24: 0.25}
"""Share of the kept weights' level that a collapse loses, by the number of latest batches that show the loss: a smaller
loss must last longer."""
FEWEST = min(LOST)
FIRST, MOVED = 6, 0.3
"""Number of batches that measure the weights with which a run begins, and the `Watch.way` after which they are no
longer those weights."""
BETTER_IN = 6
"""Number of batches that must be better on average for weights to be worth keeping."""
PROOF = 3
"""Number of batches that a candidate must sample before it replaces the kept weights: the step that made the candidate
may be the one that broke the policy."""
APART = 10
"""Steps between two candidates: each costs a checkpoint."""
BETTER, BETTER_BY = 1.5, 0.02
"""Number of standard errors, and share of the scale: an improvement is clear if it exceeds both."""
SURE = 5.0
"""Number of standard errors from which a loss is not chance."""
SURE_ALARMED = 3.5
"""Number of standard errors that is enough if entropy, truncation or KL show trouble too."""
REACH = 3.0
"""Factor by which the KL of all steps together may exceed its estimate, since each step is measured on a sample."""
JUMP = 0.3
"""KL of a step, in nats a token, from which the step is an alarm: the verdict calls it a jump."""
FAR = 1.0
"""KL, in nats a token, to the policies that sampled a batch, from which the step is an alarm."""
CUT = 0.3
"""Share of the episodes by which truncation must grow for an alarm."""
RECENT = 6
"""Number of latest steps in which an alarm is looked for."""
UNKNOWN = 1.0
"""KL that is assumed for a step without a measurement: far enough for any loss."""
ENOUGH = 8
"""Number of batches whose differences give the noise. With fewer, the spread within batches gives it."""
REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Keep:
    """The present weights are a candidate. The first weights are kept at once."""

    step: int


@dataclass(frozen=True, slots=True)
class Proved:
    """The candidate weights sampled batches as good as those of the kept weights, so they replace the kept weights."""

    step: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The candidate earned less than the kept weights, so the kept weights stay."""

    step: int


@dataclass(frozen=True, slots=True)
class Fall:
    """A collapse: the policy has lost what it could do."""

    to: int
    """The step that made the kept weights."""
    why: str


@dataclass(frozen=True, slots=True)
class InVain:
    """The restored weights earn no more than before: the tasks or the rewards have changed, not the policy."""

    step: int
    why: str


Finding = Keep | Proved | Forget | Fall | InVain


@dataclass(slots=True)
class Watch:
    """Watches every batch of a run for a collapse, and for weights that are worth keeping."""

    needs_alarm: bool = False
    """Whether tasks or their shares change by themselves, so that rewards alone do not prove a fall."""
    kept: Standing | None = None
    num_first: int = FIRST
    """Number of batches that are still needed to measure the level of `kept`."""
    candidate: Standing | None = None
    begun: int = 0
    """The step before which the latest candidate was taken."""
    spread: float = 0.0
    """The largest spread of the rewards in a batch so far."""
    noise: dict[str, float] = field(default_factory=dict)
    """Noise of each measure before the latest fall."""
    trial: float | None = None
    """Reward that the first batch of restored weights must reach; None if no weights were just restored."""
    batches: list[Seen] = field(default_factory=list)
    """The latest batches, at most `REMEMBERED`, oldest first."""
    since: int = 0
    """Number of batches since the level of `kept` was measured."""
    way: float = 0.0
    """Sum of the square roots of the KLs of all steps since the kept weights: squared, the KL if all steps go one
    way."""
    way_of_candidate: float = 0.0
    jump: float = 0.0
    """The largest KL of a step since the kept weights."""
    before: dict[str, float] = field(default_factory=dict)
    """Metrics of the latest step."""

    def learnt(self, metrics: Mapping[str, float]) -> None:
        """Note a step. Its metrics tell how far the policy moved."""
        self.before = {name: metrics[name] for name in OF_STEPS if metrics.get(name) is not None}

    def see(self, step: int, batch: Mapping[str, float]) -> Finding | None:
        """The finding on the batch of `step`, before it is trained."""
        seen = Seen.of(step, batch, self.before)
        if seen is None:
            return None
        self.spread = max(self.spread, seen.spread)
        self.batches = [*self.batches, seen][-REMEMBERED:]
        step_way = UNKNOWN if seen.kl is None else sqrt(seen.kl)
        self.jump = max(self.jump, seen.kl or 0.0)
        self.way, self.way_of_candidate = self.way + step_way, self.way_of_candidate + step_way
        if self.kept is None:
            self.kept, self.begun, self.way = Standing.of(step - 1, [seen]), step, 0.0
            self.num_first -= 1
            return Keep(step - 1)
        if self.trial is not None and (finding := self._tried(seen)) is not None:
            return finding
        if self.num_first and self.way > MOVED:
            self.num_first = 0
        if self.num_first:
            self.num_first -= 1
            self.kept = Standing.of(self.kept.step, self.batches)
            return None
        self.since += 1
        if (why := self._fall()) is not None:
            return self._fallen(why)
        return self._prove() if self.candidate is not None else self._improved(step)

    def lead(self) -> tuple[float, float] | None:
        """The rewards of the kept weights and of the latest batches, if the kept weights were clearly better."""
        width = min(self.since, BETTER_IN)
        if self.kept is None or width < FEWEST or self.needs_alarm:
            return None
        last = fmean(one.reward for one in self.batches[-width:])
        least = max(WORSE * self._error("reward", width), BETTER_BY * self._scale("reward"))
        return (self.kept.reward, last) if self.kept.reward - last > least else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, values: Mapping[str, Any], *, needs_alarm: bool = False) -> Self:
        """A watch from the values of `to_json`; a new watch if there are none."""
        if not values:
            return cls(needs_alarm)
        found = cls(**{**values, "needs_alarm": needs_alarm})
        found.kept = None if values["kept"] is None else Standing(**values["kept"])
        found.candidate = None if values["candidate"] is None else Standing(**values["candidate"])
        found.batches = [Seen(**one) for one in values["batches"]]
        return found

    # the parts of `see`

    def _tried(self, seen: Seen) -> InVain | None:
        """The finding on the first batch of the restored weights."""
        assert self.kept is not None
        assert self.trial is not None
        least, self.trial = self.trial, None
        if seen.reward >= least:
            return None
        was, step = self.kept.reward, self.kept.step
        self.kept, self.num_first, self.since = Standing.of(step, [seen]), FIRST - 1, 0
        return InVain(step, f"reward is {number(seen.reward)} with them too, and was {number(was)}")

    def _fall(self) -> str | None:
        """The loss in words, if it is large and not by chance; else None."""
        alarms = self._alarms()
        if self.needs_alarm and not alarms:
            return None
        errors = SURE_ALARMED if alarms else SURE
        assert self.kept is not None
        for width, share in LOST.items():
            if width > self.since:
                return None
            latest = self.batches[-width:]
            drops = self._drops(latest)
            for name, drop in drops.items():
                least = share * self._scale(name)
                still = [self._drops(ones)[name] for ones in self._last(latest)]
                is_much = min(drop, *still) > least
                is_sure = drop > errors * self._error(name, width)
                if is_much and is_sure and min(drops.values()) >= 0.0 and self._may_lose(drop):
                    was: float = getattr(self.kept, name)
                    told = f"{name} was {number(was)} and is {number(was - drop)} in the last {width} batches"
                    return "; ".join((told, *alarms))
        return None

    def _drops(self, batches: Sequence[Seen]) -> dict[str, float]:
        """The amounts by which batches are below the level of the kept weights."""
        assert self.kept is not None
        return {
            "success": self.kept.success - fmean(one.success for one in batches),
            "reward": self.kept.reward - fmean(one.reward for one in batches),
        }

    @staticmethod
    def _last(latest: Sequence[Seen]) -> list[Sequence[Seen]]:
        """The last batches, which must be low too: each one alone, or together if many batches are looked at."""
        last = latest[-FEWEST:]
        return [[one] for one in last] if len(latest) <= 2 * FEWEST else [last]

    def _may_lose(self, drop: float) -> bool:
        """Whether the policy has moved far enough since the kept weights to lose so much (Pinsker's inequality)."""
        share = min(1.0, drop / (2 * self.spread)) if self.spread else 1.0
        return REACH * self.way**2 * self.batches[-1].tokens >= 2 * share**2

    def _fallen(self, why: str) -> Fall:
        assert self.kept is not None
        latest = fmean(one.reward for one in self.batches[-FEWEST:])
        self.noise = {name: self._noise(name, FEWEST) for name in ("reward", "success")}
        self.trial = (self.kept.reward + latest) / 2
        self.candidate, self.since, self.batches = None, 0, []
        self.way = self.jump = 0.0
        return Fall(self.kept.step, why)

    def _prove(self) -> Proved | Forget | None:
        """The finding on the candidate: do batches that it or later weights sampled earn as much as the kept ones?"""
        assert self.kept is not None
        assert self.candidate is not None
        candidate = self.candidate
        proof = [one for one in self.batches if one.oldest >= candidate.step][:PROOF]
        if len(proof) < PROOF:
            return None
        self.candidate = None
        if fmean(one.reward for one in proof) < self.kept.reward:
            return Forget(candidate.step)
        promised = [one for one in self.batches if one.step <= candidate.step + 1][-BETTER_IN:]
        self.kept, self.since = Standing.of(candidate.step, [*promised, *proof]), 0
        self.way = self.way_of_candidate
        self.jump = max(one.kl or 0.0 for one in proof)
        return Proved(candidate.step)

    def _improved(self, step: int) -> Keep | None:
        assert self.kept is not None
        if self.since < BETTER_IN or step - self.begun < APART:
            return None
        latest = self.batches[-BETTER_IN:]
        gain = fmean(one.reward for one in latest) - self.kept.reward
        error = self._error("reward", BETTER_IN)
        if gain <= max(BETTER * error, BETTER_BY * self._scale("reward")):
            return None
        self.candidate, self.begun = Standing.of(step - 1, latest), step
        self.way_of_candidate = 0.0
        return Keep(step - 1)

    def _alarms(self) -> list[str]:
        assert self.kept is not None
        latest = self.batches[-min(RECENT, self.since) :]
        found = []
        entropies = [one.entropy for one in latest[-FEWEST:] if one.entropy is not None]
        if entropies and self.kept.entropy:
            grown = fmean(entropies) / self.kept.entropy
            if not 1 / ENTROPY <= grown <= ENTROPY:
                found.append(f"entropy {number(self.kept.entropy)} -> {number(fmean(entropies))}")
        cut = fmean(one.truncated for one in latest[-FEWEST:])
        if cut > self.kept.truncated + CUT:
            found.append(f"{cut:.0%} of the episodes run into a limit")
        if (kl := self.jump) > JUMP:
            found.append(f"a step moved the policy by {kl:.2g} nats a token")
        elif (kl := max(one.kl_behaviour for one in latest)) > FAR:
            found.append(f"the policy is {kl:.2g} nats a token away from what it samples")
        return found

    def _scale(self, name: str) -> float:
        """The scale of a loss: the success of the kept weights, or for rewards twice the largest spread in a batch. A
        loss of half the scale is large."""
        assert self.kept is not None
        if name == "success" and self.kept.success:
            return float(self.kept.success)
        return 2 * self.spread

    def _error(self, name: str, width: int) -> float:
        """The standard error of the difference between the kept weights' level and the mean of the last `width`
        batches."""
        assert self.kept is not None
        return self._noise(name, width) * sqrt(1 / width + 1 / self.kept.num)

    def _noise(self, name: str, width: int) -> float:
        """The standard deviation of a batch's mean, by chance."""
        assert self.kept is not None
        before = self.batches[:-width]
        last = self.batches[-1]
        spread = self.spread
        if name == "success":
            latest, num = self.batches[-width:], self.kept.num
            both = self.kept.success * num + sum(one.success for one in latest)
            share = both / (num + len(latest))  # by chance, both are samples of one policy
            spread = sqrt(max(0.05, share * (1.0 - share)))
        if len(before) < ENOUGH:
            return self.noise.get(name, spread / sqrt(last.groups))
        values: list[float] = [getattr(one, name) for one in before]
        changes = [abs(b - a) for a, b in pairwise(values)]
        return max(NORMAL * median(changes) / sqrt(2), spread / sqrt(4 * last.groups))


def watched(
    steps: Sequence[Mapping[str, Any]], watch: Watch | None = None
) -> Iterator[tuple[int, Finding]]:
    """The findings of a recorded run, each with its step. They are those of the live run."""
    watch = watch or Watch()
    for event in steps:
        if (finding := watch.see(event["step"], _part(event, "batch/"))) is not None:
            yield event["step"], finding
        watch.learnt(_part(event, "train/"))


def _part(event: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in event.items()
        if name.startswith(prefix) and value is not None
    }
