"""The three objectives of fine-tuning runs, over one trainer.

sft            learn(rows)
dpo            score(pairs) -> weights against the reference -> learn(weighted rows)
reward_model   score(pairs) -> weights                       -> learn(weighted rows)
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from areal_sdk.config import TrainerSection
from areal_sdk.finetune.preferences import DPO, PairLoss, PairScores, bradley_terry, summary
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.trainer import Demonstration, Trainer

SCORED_TOGETHER = 64
"""Pairs or rows in one call of `score`: each call has a deadline."""

Reference = list[list[float]]
"""Logprobs of the halves of each pair, under the weights that the run began with."""


class FinetuneObjective(Protocol):
    @property
    def rows(self) -> Sequence[Demonstration | TokenPair]: ...

    @property
    def held_out(self) -> Sequence[Demonstration | TokenPair]: ...

    def with_rows(self, rows: Sequence[int], held_out: Sequence[int]) -> Self:
        """The same objective on the rows at these places."""

    async def prepare(self, trainer: Trainer, known: Reference) -> Reference:
        """Prepare the rows before the first step; `known` is what `prepare` returned for these rows
        when the run began."""

    async def learn(self, trainer: Trainer, rows: Sequence[int]) -> Mapping[str, float]:
        """One step on these rows; the metrics have `loss` and `num_updates`."""

    async def measure(self, trainer: Trainer) -> Mapping[str, float]:
        """The loss on the held-out rows, without learning; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """Supervised fine-tuning: the mean negative logprob of the trained tokens."""

    settings: TrainerSection
    rows: Sequence[Demonstration]
    held_out: Sequence[Demonstration] = ()

    def with_rows(self, rows: Sequence[int], held_out: Sequence[int]) -> Self:
        return replace(
            self,
            rows=[self.rows[place] for place in rows],
            held_out=[self.held_out[place] for place in held_out],
        )

    async def prepare(self, trainer: Trainer, known: Reference) -> Reference:
        return []

    async def learn(self, trainer: Trainer, rows: Sequence[int]) -> Mapping[str, float]:
        return await trainer.learn(
            [self.rows[row] for row in rows],
            learning_rate=self.settings.first_learning_rate,
            timeout_s=self.settings.step_timeout_s,
        )

    async def measure(self, trainer: Trainer) -> Mapping[str, float]:
        count = sum(row.num_trained for row in self.held_out)
        if not count:
            return {}
        scores = await _scores(trainer, self.held_out, self.settings)
        return {"loss": -sum(scores) / count}


@dataclass(slots=True)
class _Pairs(ABC):
    """Learning from pairs: the mean loss over pairs."""

    settings: TrainerSection
    rows: Sequence[TokenPair]
    held_out: Sequence[TokenPair] = ()
    _reference: Reference = field(default_factory=list)
    """Reference of the pairs, then that of the held-out pairs."""

    def with_rows(self, rows: Sequence[int], held_out: Sequence[int]) -> Self:
        return replace(
            self,
            rows=[self.rows[place] for place in rows],
            held_out=[self.held_out[place] for place in held_out],
        )

    @abstractmethod
    def loss(self, pair: TokenPair, scores: PairScores, reference: PairScores) -> PairLoss:
        """The loss of a pair, from its scores and those of the reference."""

    async def prepare(self, trainer: Trainer, known: Reference) -> Reference:
        return []

    async def learn(self, trainer: Trainer, rows: Sequence[int]) -> Mapping[str, float]:
        pairs = [self.rows[row] for row in rows]
        losses = await self._losses(trainer, pairs, rows)
        weighted = [
            half
            for pair, loss in zip(pairs, losses, strict=True)
            for half in (
                replace(pair.chosen, weight=loss.chosen),
                replace(pair.rejected, weight=loss.rejected),
            )
        ]
        metrics = await trainer.learn(
            weighted,
            learning_rate=self.settings.first_learning_rate,
            divisor=float(len(pairs)),
            timeout_s=self.settings.step_timeout_s,
        )
        return {**metrics, **summary(losses)}

    async def measure(self, trainer: Trainer) -> Mapping[str, float]:
        if not self.held_out:
            return {}
        places = range(len(self.rows), len(self.rows) + len(self.held_out))
        return summary(await self._losses(trainer, self.held_out, places))

    async def _losses(
        self, trainer: Trainer, pairs: Sequence[TokenPair], places: Sequence[int]
    ) -> list[PairLoss]:
        scores = await _pair_scores(trainer, pairs, self.settings)
        known = self._reference or [[0.0, 0.0]] * (len(self.rows) + len(self.held_out))
        return [
            self.loss(pair, PairScores(*of_pair), PairScores(*known[place]))
            for pair, of_pair, place in zip(pairs, scores, places, strict=True)
        ]


@dataclass(slots=True)
class RewardModelling(_Pairs):
    """Bradley-Terry: the chosen answer gets the higher reward."""

    def loss(self, pair: TokenPair, scores: PairScores, reference: PairScores) -> PairLoss:
        return bradley_terry(scores)


@dataclass(slots=True)
class Preference(_Pairs):
    """DPO: the chosen answer becomes likelier than the rejected one, measured from the reference."""

    dpo: DPO = field(kw_only=True)

    async def prepare(self, trainer: Trainer, known: Reference) -> Reference:
        """Score every pair under the weights that the run begins with: no second model is kept."""
        everything = [*self.rows, *self.held_out]
        self._reference = known or await _pair_scores(trainer, everything, self.settings)
        assert len(self._reference) == len(everything)
        return self._reference

    def loss(self, pair: TokenPair, scores: PairScores, reference: PairScores) -> PairLoss:
        return self.dpo(scores, reference, pair.lengths)


async def _pair_scores(
    trainer: Trainer, pairs: Sequence[TokenPair], settings: TrainerSection
) -> Reference:
    halves = [half for pair in pairs for half in (pair.chosen, pair.rejected)]
    scores = await _scores(trainer, halves, settings)
    return [[chosen, rejected] for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]


async def _scores(
    trainer: Trainer, rows: Sequence[Demonstration], settings: TrainerSection
) -> list[float]:
    found: list[float] = []
    for start in range(0, len(rows), 2 * SCORED_TOGETHER):
        part = rows[start : start + 2 * SCORED_TOGETHER]
        found += await trainer.score(part, timeout_s=settings.step_timeout_s)
    return found


@dataclass(frozen=True, slots=True)
class Order:
    """The order of rows over steps: every row once an epoch, each epoch in another order.

    >>> order = Order(5, 2, seed=0)
    >>> sorted(order.batch(0) + order.batch(1) + order.batch(2))[:5] != [0, 0, 0, 0, 0]
    True
    """

    num_rows: int
    batch_size: int
    seed: int = 0

    def batch(self, step: int) -> list[int]:
        """The rows of a step. They depend on nothing but the step, so a resumed run takes the rows that are due."""
        size = min(self.batch_size, self.num_rows)
        places = range(step * size, (step + 1) * size)
        epochs = {
            epoch: self._epoch(epoch) for epoch in {place // self.num_rows for place in places}
        }
        return [epochs[place // self.num_rows][place % self.num_rows] for place in places]

    def _epoch(self, epoch: int) -> list[int]:
        rows = list(range(self.num_rows))
        random.Random(f"{self.seed}/{epoch}").shuffle(rows)
        return rows
