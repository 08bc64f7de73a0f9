"""The split of N GPUs that gives the most: how many engines, how many ranks, what staleness.

The search is short: the two rates tell about where the balance is, and the simulation decides among
the splits near it. If more staleness or more episodes in flight gain next to nothing, less is taken.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_sdk import ConfigError
from areal_sdk_plan.simulation.forecast import Forecast
from areal_sdk_plan.simulation.losses import LossRates
from areal_sdk_plan.simulation.run import simulate
from areal_sdk_plan.simulation.setup import Setup
from areal_sdk_plan.speeds import EngineSpeed

ETAS = (0, 1, 2, 4)
NEXT_TO_NOTHING = 0.03
"""A gain below this is not worth older samples or more episodes in flight."""
MOST_CALLS = 40_000
"""Maximum number of model calls that one simulation plays. It bounds the simulation's time."""
MOST_STEPS, LEAST_STEPS = 80, 16
SEARCH_SHARE = 0.3
"""Share of the final simulation's steps that a candidate of the search gets."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run as they may be multiplied."""

    setup: Setup
    """Rules, workload and speeds; its engine and the numbers of engines and ranks are replaced."""
    engines: Mapping[int, EngineSpeed]
    """The speed of an engine by the number of its GPUs."""
    least_ranks: int = 1
    """GPUs that the trainer needs at least."""
    gpu_mtbf_h: float = 0.0
    """Hours between failures of one GPU or what it hangs on. 0: nothing fails."""

    def losses(self, *, ranks: int, width: int) -> LossRates:
        if not self.gpu_mtbf_h:
            return LossRates()
        return LossRates(
            engine_mtbf_s=3600.0 * self.gpu_mtbf_h / width,
            trainer_mtbf_s=3600.0 * self.gpu_mtbf_h / ranks,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """The given part of a split; the search chooses the rest."""

    eta: int | None = None
    engines: int | None = None
    ranks: int | None = None
    is_sync: bool = False
    """Whether engines and trainer take turns on the same GPUs."""


@dataclass(frozen=True, slots=True)
class Split:
    """A way to use GPUs, and what it gives."""

    gpus: int
    """Number of GPUs that are there."""
    engines: int
    gpus_per_engine: int
    ranks: int
    setup: Setup
    forecast: Forecast
    available: float = 1.0
    """Part of the time that failures leave."""

    @property
    def is_colocated(self) -> bool:
        return self.setup.is_colocated

    @property
    def batch(self) -> int:
        return self.setup.rules.gate.batch

    @property
    def spare(self) -> int:
        """GPUs that nothing would use: the batch has no work for them."""
        own = 0 if self.is_colocated else self.engines * self.gpus_per_engine
        return self.gpus - own - self.ranks

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens that are trained, failures counted."""
        return self.forecast.tokens_per_s * self.available

    def dollars_per_mtoken(self, price: float) -> float:
        """Dollars per million sampled tokens that are trained; `price`: dollars of a GPU hour."""
        return self.gpus * price / 3600.0 / self.tokens_per_s * 1e6

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        gate = self.setup.rules.gate
        values: dict[str, Any] = {
            "gpus": self.gpus,
            "engines": self.engines,
            "gpus_per_engine": self.gpus_per_engine,
            "trainer_ranks": self.ranks,
            "spare": self.spare,
            "is_colocated": self.is_colocated,
            "batch": gate.batch,
            "group_size": self.setup.rules.group_size,
            "max_staleness": gate.max_staleness,
            "max_inflight": gate.max_inflight,
            "available": self.available,
            "trained_tokens_per_s": self.tokens_per_s,
            "steps_per_s": self.forecast.steps_per_s * self.available,
            **self.forecast.to_json(),
        }
        if price is not None:
            values["dollars_per_million_tokens"] = self.dollars_per_mtoken(price)
        return values


def best_split(
    parts: Parts,
    gpus: int,
    *,
    wanted: Wanted | None = None,
    seed: int = 0,
    note: Callable[[str], None] = lambda _: None,
) -> Split:
    """The split of `gpus` that trains the most tokens a second; ConfigError where none fits.

    `note` is told what is simulated next.
    """
    wanted = wanted or Wanted()
    least = min(parts.engines)
    if gpus < max(least, parts.least_ranks):
        raise ConfigError(
            f"{gpus} GPUs are too few: an engine needs {least}, the trainer "
            f"{parts.least_ranks}; take more, or a smaller model"
        )
    steps = max(4, round(SEARCH_SHARE * num_steps(parts.setup)))

    def tried(setup: Setup, width: int, **gate: int) -> Split:
        setup = setup.with_rollout(**gate)
        note(f"{gpus} GPUs: {_words(setup, width)}")
        return _try(parts, setup, width, gpus=gpus, steps=steps, seed=seed)

    found = [tried(setup, width) for setup, width in _candidates(parts, gpus, wanted)]
    if not found:
        raise ConfigError(
            f"{gpus} GPUs have no such split: an engine needs {least}, the trainer {parts.least_ranks} or "
            "more; change --engines, --ranks or --tp"
        )
    best = max(found, key=lambda split: split.tokens_per_s)
    width = best.gpus_per_engine
    if not best.is_colocated:
        etas = ETAS if wanted.eta is None else (wanted.eta,)
        best = _least_that_suffices(tried(best.setup, width, max_staleness=eta) for eta in etas)
        best = _least_that_suffices(
            tried(best.setup, width, max_inflight=num) for num in _inflights(best)
        )
    return _try(parts, best.setup, width, gpus=gpus, steps=num_steps(best.setup), seed=seed)


def again(parts: Parts, split: Split) -> Split:
    """The same split with the speeds of other parts."""
    setup = replace(
        split.setup,
        engine=parts.engines[split.gpus_per_engine],
        trainer=replace(parts.setup.trainer, ranks=split.ranks),
    )
    steps = max(4, round(SEARCH_SHARE * num_steps(setup)))
    return _try(parts, setup, split.gpus_per_engine, gpus=split.gpus, steps=steps, seed=0)


def _words(setup: Setup, width: int) -> str:
    gate, ranks = setup.rules.gate, setup.trainer.ranks
    split = f"{setup.num_engines} engines of {width}, trainer of {ranks}"
    return f"{split}, eta {gate.max_staleness}, {gate.max_inflight} in flight"


def num_steps(setup: Setup) -> int:
    """Steps to simulate: many, unless their episodes are very many."""
    calls = setup.rules.gate.batch * setup.workload.mean_turns()
    return int(min(MOST_STEPS, max(LEAST_STEPS, MOST_CALLS / max(1.0, calls))))


def _try(parts: Parts, setup: Setup, width: int, *, gpus: int, steps: int, seed: int) -> Split:
    warm = max(1, min(setup.rules.gate.max_staleness + 2, steps // 3))
    forecast = simulate(setup, steps=steps + warm, warm=warm, seed=seed)
    ranks = setup.trainer.ranks
    losses = parts.losses(ranks=ranks, width=width)
    available = losses.trainer_share(forecast.step_s) * losses.engine_share()
    return Split(gpus, setup.num_engines, width, ranks, setup, forecast, available)


MOST_FULL = 1.5
"""Maximum number of episodes in flight for each slot of the engines: some of them wait for tools."""


def _setup(
    parts: Parts, width: int, engines: int, ranks: int, *, eta: int, is_colocated: bool = False
) -> Setup:
    changed = replace(
        parts.setup,
        engine=parts.engines[width],
        num_engines=engines,
        trainer=replace(parts.setup.trainer, ranks=ranks),
        is_colocated=is_colocated,
    )
    gate = changed.rules.gate
    inflight = (eta + 1) * gate.batch
    if not is_colocated:
        full = max(gate.batch, round(MOST_FULL * engines * changed.engine.max_slots))
        inflight = _whole_groups(min(inflight, full), changed.rules.group_size)
    return changed.with_rollout(max_staleness=eta, max_inflight=inflight)


def _candidates(parts: Parts, gpus: int, wanted: Wanted) -> Iterator[tuple[Setup, int]]:
    """Splits to simulate, and the GPUs of their engines: for each width some near the balance of both rates.

    More engines than episodes in flight, or more ranks than episodes in a batch, would have no work.
    """
    batch = parts.setup.rules.gate.batch
    eta = max(ETAS) if wanted.eta is None else wanted.eta
    for width in sorted(parts.engines):
        if not wanted.is_sync:
            for engines, ranks in _balanced(parts, width, gpus, wanted, most=(eta + 1) * batch):
                yield _setup(parts, width, engines, ranks, eta=eta), width
        if wanted.engines is None and wanted.ranks is None and width <= gpus:
            engines, ranks = min(gpus // width, batch), min(gpus, max(batch, parts.least_ranks))
            yield (
                _setup(parts, width, engines, ranks, eta=wanted.eta or 0, is_colocated=True),
                width,
            )


def _balanced(
    parts: Parts, width: int, gpus: int, wanted: Wanted, *, most: int
) -> Iterator[tuple[int, int]]:
    """Numbers of engines, at most `most`, and of ranks where neither has to wait much for the other."""
    setup, least = parts.setup, parts.least_ranks
    batch = setup.rules.gate.batch
    sampled, rows = batch * setup.workload.mean_sampled(), batch * setup.workload.mean_row()
    rate = _engine_rate(parts.engines[width], setup)
    most_ranks = min(gpus - width, max(batch, least))

    def engines_beside(ranks: int) -> int:
        return min(most, (gpus - ranks) // width)

    def slower(ranks: int) -> float:
        trainer = replace(setup.trainer, ranks=ranks)
        trained_s = trainer.step_s(rows, batch) + trainer.whole_publish_s
        return max(trained_s, sampled / (engines_beside(ranks) * rate))

    if wanted.engines is not None or wanted.ranks is not None:
        left = gpus - (wanted.engines or 1) * width
        ranks = wanted.ranks if wanted.ranks is not None else left
        engines = wanted.engines if wanted.engines is not None else (gpus - ranks) // width
        if least <= ranks and engines >= 1 and engines * width + ranks <= gpus:
            yield engines, ranks
        return
    if most_ranks < least:
        return
    balance = min(range(least, most_ranks + 1), key=slower)
    chosen = {
        min(most_ranks, max(least, round(balance * factor))) for factor in (0.5, 0.75, 1.0, 1.3)
    }
    for ranks in sorted(chosen):
        engines = engines_beside(ranks)
        yield engines, min(gpus - engines * width, most_ranks)


def _engine_rate(engine: EngineSpeed, setup: Setup) -> float:
    """Tokens a second of a full server, prefill counted."""
    shapes = setup.workload.episodes
    sampled = sum(shape.num_sampled for shape in shapes)
    context = sum(t.num_prompt + 0.5 * t.num_output for s in shapes for t in s.turns)
    calls = sum(len(shape.turns) for shape in shapes)
    new = sum(t.num_new - t.num_shared for s in shapes for t in s.turns)
    slots = engine.max_slots
    if engine.kv_tokens:
        slots = max(1, min(slots, round(engine.kv_tokens * calls / max(1.0, context))))
    step_s = engine.decode.step_s(slots) + engine.kv_read_s * slots * context / calls
    return slots / (step_s + engine.prefill_s * slots * new / sampled)


def _inflights(split: Split) -> list[int]:
    """Episodes in flight to try: fewer than all that the gate would let start."""
    rules = split.setup.rules
    most = rules.gate.max_inflight
    tried = {_whole_groups(round(most * share), rules.group_size) for share in (0.4, 0.6, 0.8, 1.0)}
    return sorted(tried)


def _whole_groups(episodes: int, size: int) -> int:
    return max(1, episodes // size) * size


def _least_that_suffices(splits: Iterator[Split]) -> Split:
    """The first of the splits, in rising order, that is nearly as fast as the best."""
    found: Sequence[Split] = list(splits)
    best = max(split.tokens_per_s for split in found)
    return next(s for s in found if s.tokens_per_s >= (1.0 - NEXT_TO_NOTHING) * best)


def with_rules(
    parts: Parts, *, batch: int | None = None, group_size: int | None = None, drains: bool = False
) -> Parts:
    """The same parts with other rules: episodes a step, episodes of a group, how weights are swapped."""
    setup = replace(parts.setup, drains=drains)
    size = setup.rules.group_size if group_size is None else group_size
    batch = setup.rules.gate.batch if batch is None else batch
    if batch % size:
        raise ConfigError(f"batch = {batch} is not a multiple of the group size, {size}")
    return replace(parts, setup=setup.with_rollout(batch=batch, group_size=size))


@dataclass(frozen=True, slots=True)
class LargerBatch:
    """A batch with which the same split trains more tokens a second."""

    batch: int
    gain: float
    """Relative."""


def larger_batch(parts: Parts, split: Split) -> LargerBatch:
    """The batch after doublings, as long as each gains much. What they do to learning is not simulated."""
    found = LargerBatch(split.setup.rules.gate.batch, 0.0)
    for factor in (2, 4, 8, 16):
        gate = split.setup.rules.gate
        batch = factor * gate.batch
        setup = split.setup.with_rollout(batch=batch, max_inflight=factor * gate.max_inflight)
        steps = max(4, round(SEARCH_SHARE * num_steps(setup)))
        tried = _try(parts, setup, split.gpus_per_engine, gpus=split.gpus, steps=steps, seed=0)
        gain = tried.tokens_per_s / split.tokens_per_s - 1.0
        if 1.0 + gain < (1.0 + MUCH) * (1.0 + found.gain):
            break
        found = LargerBatch(batch, gain)
    return found


MUCH = 0.15
"""A larger batch that gains less is not told."""
