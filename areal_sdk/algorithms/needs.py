"""The needs of an algorithm beyond advantages: each part declares its needs, and a step provides them."""

from dataclasses import dataclass
from enum import IntEnum


class Coverage(IntEnum):
    """The trained tokens that become loss terms. All trained tokens stay in the divisor."""

    ADVANTAGED = 0
    """Tokens with an advantage: enough if nothing else gives a gradient. The other tokens are left out and cost nothing."""
    SEQUENCES = 1
    """All tokens of each trajectory that has an advantage somewhere."""
    ALL = 2
    """All trained tokens, also in groups that teach nothing."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The inputs of a part of an algorithm. An estimator, an objective or a penalty declares `needs`.

    >>> Needs(reference=True) | Needs(coverage=Coverage.SEQUENCES)
    Needs(reference=True, values=False, returns=False, entropy=False, minibatch=False, coverage=<Coverage.SEQUENCES: 1>)
    """

    reference: bool = False
    """Logprobs under the checkpoint that the run began with: a frozen model in memory."""
    values: bool = False
    """A critic's values at the start of the step."""
    returns: bool = False
    """The estimator's returns; if it has none, the undiscounted return of each token's turn."""
    entropy: bool = False
    """The entropy of each token's distribution, with a gradient."""
    minibatch: bool = False
    """The importance weights of the whole minibatch, over all ranks, before its first backward; `Screens` reads them."""
    coverage: Coverage = Coverage.ADVANTAGED

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            reference=self.reference or other.reference,
            values=self.values or other.values,
            returns=self.returns or other.returns,
            entropy=self.entropy or other.entropy,
            minibatch=self.minibatch or other.minibatch,
            coverage=max(self.coverage, other.coverage),
        )


def needs_of(*parts: object) -> Needs:
    """The needs of all `parts` together. A part that declares no needs has none."""
    needs = Needs()
    for part in parts:
        needs |= getattr(part, "needs", Needs())
    return needs
