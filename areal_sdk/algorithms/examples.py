"""What is computed for one trajectory: its tokens, and those of them that move the weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from areal_sdk.algorithms.returns import Floats
from areal_sdk.trajectory import Trajectory

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Example:
    """A token sequence and its targets, all of them with a gradient. T targets."""

    tokens: Ints
    targets_T: Ints
    """Indices into `tokens`, ascending, never 0: something must predict them."""
    advantages_T: Floats
    logprobs_T: Floats
    """Of the behaviour policy."""
    versions_T: Ints
    temperatures_T: Floats

    @property
    def inputs(self) -> Ints:
        """What the model must read: the last target, and whatever follows it, is never an input."""
        return self.tokens[: self.targets_T[-1]]


def make_example(trajectory: Trajectory, advantages: Floats) -> Example | None:
    """The example of `trajectory`; None when no trained token of it has an advantage."""
    mask = np.asarray(trajectory.loss_mask, dtype=bool)
    if len(mask) and mask[0]:
        raise ValueError(
            f"episode {trajectory.episode_id!r} trains its first token, which nothing predicts: "
            "a prompt has at least one token"
        )
    targets = np.flatnonzero(mask & (advantages != 0.0))
    if not len(targets):
        return None
    return Example(
        np.asarray(trajectory.tokens, dtype=np.int64),
        targets,
        advantages[targets],
        np.asarray(trajectory.logprobs, dtype=np.float32)[targets],
        np.asarray(trajectory.versions, dtype=np.int64)[targets],
        np.asarray(trajectory.temperatures, dtype=np.float32)[targets],
    )


def make_demonstration(
    tokens: Sequence[int], loss_mask: Sequence[bool], weight: float = 1.0
) -> Example | None:
    """The example that imitates the masked tokens, each with `weight`; None when there are none."""
    mask = np.asarray(loss_mask, dtype=bool).copy()
    if len(mask) != len(tokens):
        raise ValueError(f"a mask of {len(mask)} for {len(tokens)} tokens")
    mask[:1] = False  # nothing predicts the first token
    targets = np.flatnonzero(mask)
    if not len(targets):
        return None
    ones = np.ones(len(targets), dtype=np.float32)
    return Example(
        np.asarray(tokens, dtype=np.int64),
        targets,
        ones * np.float32(weight),
        np.zeros_like(ones),
        np.zeros(len(targets), dtype=np.int64),
        ones,
    )
