"""One trajectory as the model computes it: its tokens, and the tokens that become loss terms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from areal_sdk.algorithms.advantages.returns import Floats
from areal_sdk.algorithms.needs import Coverage
from areal_sdk.trajectory import Branch, Trajectory

Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Example:
    """A token sequence, and its T targets: the tokens that become loss terms."""

    branch: Branch
    targets_T: Ints
    """Positions of the targets in the whole sequence, ascending. Position 0 is never a target, since no token predicts it.
    All targets are the branch's own tokens, not those of a branch that it builds on."""
    advantages_T: Floats
    logprobs_T: Floats
    """Logprobs of the behaviour policy."""
    versions_T: Ints
    temperatures_T: Floats
    boundary_T: Bools
    """Mask of the first and last token of each turn."""
    group: int = 0
    weight: float = 1.0
    """Weight of each target in the aggregate."""
    reference_T: Floats | None = None
    values_T: Floats | None = None
    returns_T: Floats | None = None

    @property
    def inputs(self) -> Branch:
        """The tokens that the model reads: all tokens before the last target."""
        return self.branch.cut(int(self.targets_T[-1]))

    @property
    def target_tokens(self) -> Ints:
        return self.branch.tokens[self.targets_T - self.branch.num_before]


def make_example(
    trajectory: Trajectory,
    advantages: Floats,
    *,
    coverage: Coverage = Coverage.ADVANTAGED,
    group: int = 0,
    weight: float = 1.0,
    reference: Floats | None = None,
    values: Floats | None = None,
    returns: Floats | None = None,
) -> Example | None:
    """The example of `trajectory`; None when `coverage` leaves it no loss term.

    Advantages and the other inputs have one number a token.
    """
    mask = trajectory.loss_mask
    start = trajectory.branch.num_before
    if not start and mask[:1].any():
        raise ValueError(
            f"episode {trajectory.episode_id!r} trains its first token, and no token before it "
            "predicts it: give the prompt at least one token"
        )
    has_advantage = mask & (advantages != 0.0)
    if coverage is Coverage.ALL or (coverage is Coverage.SEQUENCES and has_advantage.any()):
        targets = np.flatnonzero(mask)
    else:
        targets = np.flatnonzero(has_advantage)
    if not len(targets):
        return None

    def at(values: Floats | None) -> Floats | None:
        return None if values is None else values[targets]

    return Example(
        trajectory.branch,
        targets + start,
        advantages[targets],
        trajectory.logprobs[targets],
        trajectory.versions[targets],
        trajectory.temperatures[targets],
        _boundaries(trajectory.turn_of_token)[targets],
        group,
        weight,
        at(reference),
        at(values),
        at(returns),
    )


def make_demonstration(
    tokens: Sequence[int], loss_mask: Sequence[bool], weight: float = 1.0
) -> Example | None:
    """The example that teaches the tokens where `loss_mask` is true, each with `weight`; None without any."""
    mask = np.asarray(loss_mask, dtype=bool).copy()
    if len(mask) != len(tokens):
        raise ValueError(
            f"loss_mask has {len(mask)} entries for {len(tokens)} tokens: give one entry a token"
        )
    mask[:1] = False  # nothing predicts the first token
    targets = np.flatnonzero(mask)
    if not len(targets):
        return None
    ones = np.ones(len(targets), dtype=np.float32)
    return Example(
        Branch(tokens),
        targets,
        ones * np.float32(weight),
        np.zeros_like(ones),
        np.zeros(len(targets), dtype=np.int64),
        ones,
        np.zeros(len(targets), dtype=bool),
    )


def _boundaries(turns: Ints) -> Bools:
    """Whether a token is the first or the last of its turn, by the turn of each token.

    >>> _boundaries(np.array([-1, 0, 0, 0, -1, 1])).tolist()
    [True, True, False, True, True, True]
    """
    changes = np.flatnonzero(np.diff(turns))
    edges = np.zeros(len(turns), dtype=bool)
    edges[[*changes, *(changes + 1)]] = True
    edges[:1] = edges[-1:] = True
    return edges
