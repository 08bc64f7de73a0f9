"""The weight of each loss term, computed while planning.

Every rank plans from the same groups, so all ranks know the same weights and divisor before the forward
pass. So sums over micro-batches and ranks are exact, even if tokens are masked later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from areal_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shares:
    """The loss of a minibatch is the sum of `weight * loss` over its terms, divided by `divisor`."""

    weights: tuple[float, ...]
    """Weight of each term of an episode, one for each episode."""
    divisor: float


class Aggregation(Protocol):
    def __call__(self, lengths: Sequence[int]) -> Shares:
        """The shares of a minibatch whose episodes have these numbers of trained tokens.

        Tokens without an advantage are counted. No length is 0.
        """


@dataclass(frozen=True, slots=True)
class TokenMean:
    """Each trained token counts the same: 1 / N, with N trained tokens in the minibatch.

    >>> TokenMean()([1, 3])
    Shares(weights=(1.0, 1.0), divisor=4.0)
    """

    def __call__(self, lengths: Sequence[int]) -> Shares:
        return Shares((1.0,) * len(lengths), float(sum(lengths)))


@dataclass(frozen=True, slots=True)
class SequenceMean:
    """Each of the S episodes counts the same: a token of an episode with L trained tokens counts 1 / (S L).

    >>> SequenceMean()([1, 4])
    Shares(weights=(1.0, 0.25), divisor=2.0)
    """

    def __call__(self, lengths: Sequence[int]) -> Shares:
        return Shares(tuple(1.0 / length for length in lengths), float(len(lengths)))


@dataclass(frozen=True, slots=True)
class ConstantLength:
    """Each token counts 1 / (S `length`) with S episodes in the minibatch, however long their answers are.

    Liu et al. 2025, arXiv 2503.20783: a mean over an answer's own length would spare long wrong answers.

    >>> ConstantLength(length=10)([1, 3])
    Shares(weights=(1.0, 1.0), divisor=20.0)
    """

    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"length = {self.length}: give at least one token")

    def __call__(self, lengths: Sequence[int]) -> Shares:
        return Shares((1.0,) * len(lengths), float(len(lengths) * self.length))
