"""The plan of a step: from advantages to minibatches of rows, the same plan on every rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from areal_sdk.algorithms.advantages.estimator import Estimate, Evidence, PerToken
from areal_sdk.algorithms.advantages.returns import Floats, returns_of, spread_turns
from areal_sdk.algorithms.algorithm import Algorithm
from areal_sdk.algorithms.batch import Batch, empty_batch, make_batch
from areal_sdk.algorithms.examples import Example, make_example
from areal_sdk.algorithms.needs import Coverage
from areal_sdk.algorithms.objectives import PolicyTerms
from areal_sdk.algorithms.packing import plan_rows, split_evenly
from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.step.probe import Probe, sampled
from areal_sdk.trajectory import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The work of one optimiser update, as this rank sees it."""

    batches: list[Batch]
    divisor: float
    """Divisor over *all* ranks, which counts terms with and without an advantage."""
    num_terms: int
    """Number of terms over all ranks."""
    probe: Probe | None = None
    """The sequences by which the update is measured."""
    groups: tuple[int, ...] = ()
    """Indices of its groups in the step."""
    weights: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """Weight of each term of an episode, by group and episode."""
    places_T: torch.Tensor | None = None
    """Place of each term among all tokens that the step counts; None for demonstrations."""

    def terms(
        self,
        batch: Batch,
        current_T: torch.Tensor,
        proximal_T: torch.Tensor,
        entropies_T: torch.Tensor | None,
    ) -> PolicyTerms:
        """A batch as the objective sees it."""
        return PolicyTerms(
            current_T=current_T,
            proximal_T=proximal_T,
            behaviour_T=batch.behaviour_T,
            advantages_T=batch.advantages_T,
            mask_T=batch.mask_T,
            sequences_T=batch.sequences_T,
            groups_T=batch.groups_T,
            lags_T=batch.lags_T,
            weights_T=batch.weights_T,
            divisor=self.divisor,
            reference_T=batch.reference_T,
            values_T=batch.values_T,
            returns_T=batch.returns_T,
            entropies_T=entropies_T,
            kept_T=batch.kept_T,
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    minibatches: list[Minibatch]
    """Minibatches with work. All ranks agree on them, since they planned from the same groups."""
    num_terms: int
    num_with_advantage: int
    num_idle_groups: int


@dataclass(frozen=True, slots=True)
class Planner:
    settings: TrainerSection
    ranks: Ranks

    def plan(
        self,
        groups: Sequence[TrajectoryGroup],
        algorithm: Algorithm,
        estimate: Estimate,
        evidence: Evidence,
        *,
        version: int,
    ) -> StepPlan:
        """The minibatches of a step: whole groups, about equally many trained tokens in each."""
        if estimate.returns is None and algorithm.needs.returns:
            estimate = replace(estimate, returns=turn_returns(groups))
        counts = [sum(t.num_trained for t in group.trajectories) for group in groups]
        parts = split_evenly(counts, self.settings.num_minibatches)
        planned = [
            self._minibatch(
                groups,
                part,
                algorithm,
                estimate,
                evidence,
                version=version,
                seed=version * len(parts) + number,
            )
            for number, part in enumerate(parts)
        ]
        teaches = [
            sum(int((row != 0.0).sum()) for row in of_group) for of_group in estimate.advantages
        ]
        return StepPlan(
            [minibatch for minibatch in planned if minibatch.num_terms],
            sum(minibatch.num_terms for minibatch in planned),
            sum(teaches),
            sum(not count for count in teaches),
        )

    def _minibatch(
        self,
        groups: Sequence[TrajectoryGroup],
        part: Sequence[int],
        algorithm: Algorithm,
        estimate: Estimate,
        evidence: Evidence,
        *,
        version: int,
        seed: int,
    ) -> Minibatch:
        lengths: dict[tuple[int, str], int] = {}
        for i in part:
            for t in groups[i].trajectories:
                if t.num_trained:
                    key = i, t.episode_id
                    lengths[key] = lengths.get(key, 0) + t.num_trained
        shares = algorithm.aggregation(list(lengths.values()))
        weights = dict(zip(lengths, shares.weights, strict=True))
        examples = {
            (i, j): example
            for i in part
            for j, t in enumerate(groups[i].trajectories)
            if (
                example := make_example(
                    t,
                    estimate.advantages[i][j],
                    coverage=algorithm.needs.coverage,
                    group=i,
                    weight=weights.get((i, t.episode_id), 0.0),
                    reference=_row(evidence.reference, i, j),
                    values=_row(evidence.values, i, j),
                    returns=_row(estimate.returns, i, j),
                )
            )
            is not None
        }
        planned = self.minibatch([*examples.values()], divisor=shares.divisor, version=version)
        places = places_of(groups, examples)
        return replace(
            planned,
            probe=self._probe([groups[i] for i in part], version=version, seed=seed),
            groups=tuple(part),
            weights=weights,
            places_T=torch.from_numpy(places).to(self.ranks.device, non_blocking=True),
        )

    def minibatch(self, examples: Sequence[Example], *, divisor: float, version: int) -> Minibatch:
        if not examples:
            return Minibatch([], divisor, 0)
        rows_of_rank = plan_rows(
            [example.inputs for example in examples],
            max_tokens=self.settings.tokens_per_microbatch,
            num_ranks=self.ranks.size,
            share=self.settings.share_prompts,
        )
        device = self.ranks.device
        batches = [
            make_batch(trees, examples, version=version, device=device)
            for trees in rows_of_rank[self.ranks.rank]
        ]
        # Forward and backward are collectives: every rank does as many as the busiest one.
        missing = max(map(len, rows_of_rank)) - len(batches)
        batches += [empty_batch(examples[0], device=device)] * missing
        return Minibatch(batches, divisor, sum(len(e.targets_T) for e in examples))

    def _probe(self, groups: Sequence[TrajectoryGroup], *, version: int, seed: int) -> Probe | None:
        """A sample of all sequences of `groups`, in rows of their own."""
        examples = sampled_examples(sampled(groups, seed=seed))
        if not examples:
            return None
        rows = self.minibatch(examples, divisor=1.0, version=version)
        num_terms = sum(t.num_trained for group in groups for t in group.trajectories)
        trained = [{t.episode_id for t in group.trajectories if t.num_trained} for group in groups]
        return Probe(rows.batches, tokens_per_episode=num_terms / sum(map(len, trained)))


def places_of(
    groups: Sequence[TrajectoryGroup], examples: Mapping[tuple[int, int], Example]
) -> NDArray[np.int64]:
    """The place of each term among all trained tokens of `groups`; examples are by group and trajectory."""
    counts = [[t.num_trained for t in group.trajectories] for group in groups]
    ends = iter(np.cumsum([0, *(count for row in counts for count in row)]).tolist())
    starts = [[next(ends) for _ in row] for row in counts]
    places = [np.zeros(0, np.int64)]
    for (i, j), example in examples.items():
        t = groups[i].trajectories[j]
        ranks = np.cumsum(t.loss_mask) - 1
        places.append(starts[i][j] + ranks[example.targets_T - t.branch.num_before])
    return np.concatenate(places)


def sampled_examples(groups: Sequence[TrajectoryGroup]) -> list[Example]:
    """Every sampled token of `groups` that is trained, whatever its advantage."""
    made = [
        make_example(t, np.zeros(len(t.tokens), np.float32), coverage=Coverage.ALL, group=number)
        for number, group in enumerate(groups)
        for t in group.trajectories
    ]
    return [example for example in made if example is not None]


def gather(minibatch: Minibatch, values: Sequence[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """One value for each term of the minibatch, in the same order on every rank. A collective."""
    gathered = torch.zeros(minibatch.num_terms, dtype=torch.float32, device=ranks.device)
    for batch, values_T in zip(minibatch.batches, values, strict=True):
        if not batch.is_empty:
            gathered[batch.indices_T] = values_T.float()
    return ranks.sum_tensor(gathered)


def turn_returns(groups: Sequence[TrajectoryGroup]) -> PerToken:
    """The return of each trained token's turn; 0 if nothing was scored."""
    rows = []
    for group in groups:
        returns = returns_of(group, discount=1.0)
        rows.append(
            [
                spread_turns(t, [value or 0.0 for value in returns[t.episode_id]])
                for t in group.trajectories
            ]
        )
    return rows


def _row(values: PerToken | None, group: int, trajectory: int) -> Floats | None:
    return None if values is None else values[group][trajectory]
