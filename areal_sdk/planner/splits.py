"""Which split of N GPUs gives the most: how many engines, how many ranks, what staleness.

The search is short: the two rates tell about where the balance is, and the simulation decides among
the splits near it. Where more staleness or more episodes in flight gain next to nothing, less is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.planner.simulation.forecast import Forecast
from areal_sdk.planner.simulation.losses import LossRates
from areal_sdk.planner.simulation.run import simulate
from areal_sdk.planner.simulation.setup import Setup
from areal_sdk.planner.speeds import EngineSpeed

ETAS = (0, 1, 2, 4)
NEXT_TO_NOTHING = 0.03
"""A gain below this is not worth older samples or more episodes in flight."""
MOST_CALLS = 40_000
"""Model calls that one simulation plays: what bounds its time."""
MOST_STEPS, LEAST_STEPS = 80, 16
SEARCH_SHARE = 0.3
"""Of the steps of the final simulation, those that a candidate of the search gets."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run as they may be multiplied."""

    setup: Setup
    """Rules, workload and speeds; its numbers of engines and ranks are replaced."""
    gpus_per_engine: int = 1
    least_ranks: int = 1
    """GPUs that the trainer needs at least."""
    gpu_mtbf_h: float = 0.0
    """Hours between failures of one GPU or what it hangs on. 0: nothing fails."""

    def losses(self, *, ranks: int) -> LossRates:
        if not self.gpu_mtbf_h:
            return LossRates()
        return LossRates(
            engine_mtbf_s=3600.0 * self.gpu_mtbf_h / self.gpus_per_engine,
            trainer_mtbf_s=3600.0 * self.gpu_mtbf_h / ranks,
        )


@dataclass(frozen=True, slots=True)
class Split:
    """A way to use GPUs, and what it gives."""

    gpus: int
    """Those that are used."""
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
    def tokens_per_s(self) -> float:
        """Sampled tokens that are trained, failures counted."""
        return self.forecast.tokens_per_s * self.available

    def dollars_per_mtoken(self, price: float) -> float:
        """Of a million sampled tokens that are trained; `price`: dollars of a GPU hour."""
        return self.gpus * price / 3600.0 / self.tokens_per_s * 1e6

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        gate = self.setup.rules.gate
        values: dict[str, Any] = {
            "gpus": self.gpus,
            "engines": self.engines,
            "gpus_per_engine": self.gpus_per_engine,
            "trainer_ranks": self.ranks,
            "is_colocated": self.is_colocated,
            "batch": gate.batch,
            "group_size": self.setup.rules.rollout.group_size,
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


def best_split(parts: Parts, gpus: int, *, eta: int | None = None, seed: int = 0) -> Split:
    """The split of `gpus` that trains the most tokens a second; ConfigError where none fits."""
    if gpus < max(parts.gpus_per_engine, parts.least_ranks):
        raise ConfigError(
            f"{gpus} GPUs are too few: an engine needs {parts.gpus_per_engine}, the trainer "
            f"{parts.least_ranks}; take more, or a smaller model"
        )
    steps = max(4, round(SEARCH_SHARE * num_steps(parts.setup)))

    def tried(setup: Setup, engines: int, ranks: int) -> Split:
        return _try(parts, setup, engines, ranks, gpus=gpus, steps=steps, seed=seed)

    found = [
        tried(_setup(parts, engines, ranks, eta=_given(eta, max(ETAS))), engines, ranks)
        for engines, ranks in _candidates(parts, gpus)
    ]
    found.append(tried(_colocated(parts, gpus, eta=_given(eta, 0)), *_all(parts, gpus)))
    best = max(found, key=lambda split: split.tokens_per_s)
    if not best.is_colocated:
        etas = ETAS if eta is None else (eta,)
        best = _least_that_suffices(
            tried(best.setup.with_gate(max_staleness=e), best.engines, best.ranks) for e in etas
        )
        best = _least_that_suffices(
            tried(best.setup.with_gate(max_inflight=num), best.engines, best.ranks)
            for num in _inflights(best)
        )
    return _try(
        parts,
        best.setup,
        best.engines,
        best.ranks,
        gpus=gpus,
        steps=num_steps(best.setup),
        seed=seed,
    )


def num_steps(setup: Setup) -> int:
    """Steps to simulate: many, unless their episodes are very many."""
    calls = setup.rules.gate.batch * setup.workload.mean_turns()
    return int(min(MOST_STEPS, max(LEAST_STEPS, MOST_CALLS / max(1.0, calls))))


def _try(
    parts: Parts,
    setup: Setup,
    engines: int,
    ranks: int,
    *,
    gpus: int,
    steps: int,
    seed: int,
) -> Split:
    warm = max(1, min(setup.rules.gate.max_staleness + 2, steps // 3))
    forecast = simulate(setup, steps=steps + warm, warm=warm, seed=seed)
    losses = parts.losses(ranks=ranks)
    available = losses.trainer_share(forecast.step_s) * losses.engine_share()
    return Split(gpus, engines, parts.gpus_per_engine, ranks, setup, forecast, available)


def _setup(parts: Parts, engines: int, ranks: int, *, eta: int) -> Setup:
    setup = parts.setup
    changed = replace(
        setup, num_engines=engines, trainer=replace(setup.trainer, ranks=ranks), is_colocated=False
    )
    gate = setup.rules.gate
    inflight = max(gate.batch, round(MOST_FULL * engines * setup.engine.max_slots))
    inflight = _whole_groups(min(inflight, (eta + 1) * gate.batch), setup.rules.rollout.group_size)
    return changed.with_gate(max_staleness=eta, max_inflight=inflight)


MOST_FULL = 1.5
"""Episodes in flight for each slot of the engines: some of them wait for tools."""


def _colocated(parts: Parts, gpus: int, *, eta: int) -> Setup:
    engines, ranks = _all(parts, gpus)
    setup = replace(_setup(parts, engines, ranks, eta=eta), is_colocated=True)
    return setup.with_gate(max_inflight=setup.rules.gate.batch * (eta + 1))


def _all(parts: Parts, gpus: int) -> tuple[int, int]:
    return max(1, gpus // parts.gpus_per_engine), gpus


def _candidates(parts: Parts, gpus: int) -> Iterator[tuple[int, int]]:
    """Splits near the balance of both rates, as (engines, ranks)."""
    most = gpus - parts.gpus_per_engine
    if most < parts.least_ranks:
        return
    setup, tp = parts.setup, parts.gpus_per_engine
    sampled = setup.rules.gate.batch * setup.workload.mean_sampled()
    rows = setup.rules.gate.batch * setup.workload.mean_row()
    rate = _engine_rate(setup.engine, setup)

    def slower(ranks: int) -> float:
        engines = (gpus - ranks) // tp
        trainer = replace(setup.trainer, ranks=ranks)
        return max(trainer.step_s(rows) + trainer.whole_publish_s, sampled / (engines * rate))

    balance = min(range(parts.least_ranks, most + 1), key=slower)
    chosen = {
        min(most, max(parts.least_ranks, round(balance * factor)))
        for factor in (0.5, 0.75, 1.0, 1.3)
    }
    for ranks in sorted(chosen):
        engines = (gpus - ranks) // tp
        yield engines, gpus - engines * tp


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
    tried = {
        _whole_groups(round(most * share), rules.rollout.group_size)
        for share in (0.4, 0.6, 0.8, 1.0)
    }
    return sorted(tried)


def _whole_groups(episodes: int, size: int) -> int:
    return max(1, episodes // size) * size


def _least_that_suffices(splits: Iterator[Split]) -> Split:
    """The first of rising ones that is next to the best."""
    found: Sequence[Split] = list(splits)
    best = max(split.tokens_per_s for split in found)
    return next(s for s in found if s.tokens_per_s >= (1.0 - NEXT_TO_NOTHING) * best)


def _given(eta: int | None, default: int) -> int:
    return default if eta is None else eta


def with_batch(parts: Parts, batch: int) -> Parts:
    """The same parts with `batch` episodes a step."""
    size = parts.setup.rules.rollout.group_size
    if batch % size:
        raise ConfigError(f"batch = {batch} is not a multiple of the group size, {size}")
    return replace(parts, setup=parts.setup.with_gate(batch=batch))


@dataclass(frozen=True, slots=True)
class LargerBatch:
    """A batch with which the same split trains more tokens a second."""

    batch: int
    gain: float
    """Relative."""


def larger_batch(parts: Parts, split: Split) -> LargerBatch:
    """The batch is doubled while that gains much. What it does to learning is not simulated."""
    found = LargerBatch(split.setup.rules.gate.batch, 0.0)
    for factor in (2, 4, 8, 16):
        rules = split.setup.rules
        gate = replace(
            rules.gate,
            batch=factor * rules.gate.batch,
            max_inflight=factor * rules.gate.max_inflight,
        )
        setup = split.setup.with_rules(gate=gate)
        steps = max(4, round(SEARCH_SHARE * num_steps(setup)))
        tried = _try(parts, setup, split.engines, split.ranks, gpus=split.gpus, steps=steps, seed=0)
        gain = tried.tokens_per_s / split.tokens_per_s - 1.0
        if 1.0 + gain < (1.0 + MUCH) * (1.0 + found.gain):
            break
        found = LargerBatch(gate.batch, gain)
    return found


MUCH = 0.15
"""A larger batch that gains less is not told."""
