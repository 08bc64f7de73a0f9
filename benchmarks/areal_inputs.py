"""The same random numbers in AReaL's form and in ours.

Answers have one or two turns, with what a tool said between them. Rewards are 0, 1 and a few others. Tokens have logprobs
under policies that are far enough apart for every clip and bound to act.

Shapes: B rows, L tokens of a row, T packed tokens, S sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from areal_functions import Theirs
from torch import Tensor

from areal_sdk.algorithms import Algorithm, Evidence, PolicyTerms
from areal_sdk.algorithms.objectives import Objective
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

GROUP_SIZE, NUM_GROUPS, LONGEST = 4, 3, 12


@dataclass(frozen=True)
class Rows:
    """Answers as AReaL has them: one row each, padded. Arrays are by token; B rows, L tokens."""

    trained_BL: np.ndarray
    length_B: np.ndarray
    behaviour_BL: np.ndarray
    reference_BL: np.ndarray
    values_BL: np.ndarray
    rewards_B: np.ndarray


def random_rows(seed: int) -> Rows:
    """A prompt token, a turn, and in half of the rows two tokens of a tool and another turn."""
    rng = np.random.default_rng(seed)
    count = GROUP_SIZE * NUM_GROUPS
    trained_BL = np.zeros((count, LONGEST + 1), bool)  # no row is as wide: none counts as cut off
    length_B = np.zeros(count, int)
    for row in range(count):
        first = int(rng.integers(1, 5))
        trained_BL[row, 1 : 1 + first] = True
        length_B[row] = 1 + first
        if rng.random() < 0.5:
            second = int(rng.integers(1, 5))
            trained_BL[row, 3 + first : 3 + first + second] = True
            length_B[row] = 3 + first + second
    shape = trained_BL.shape
    behaviour_BL = np.where(trained_BL, -np.abs(rng.normal(2.0, 1.0, shape)), 0.0)
    reference_BL = np.where(trained_BL, behaviour_BL + rng.normal(0.0, 0.5, shape), 0.0)
    values_BL = np.where(trained_BL, rng.normal(0.0, 1.0, shape), 0.0)
    rewards_B = rng.choice([0.0, 1.0, 1.0, -0.3, 9.0], count)
    return Rows(trained_BL, length_B, behaviour_BL, reference_BL, values_BL, rewards_B)


def as_groups(rows: Rows) -> list[TrajectoryGroup]:
    def trajectory(row: int) -> Trajectory:
        length = int(rows.length_B[row])
        mask = rows.trained_BL[row, :length]
        begins = mask & ~np.concatenate([[False], mask[:-1]])
        turns = np.where(mask, begins.cumsum() - 1, -1)
        return Trajectory(
            episode_id=f"{row}",
            task_id="t",
            tokens=tuple(range(1, length + 1)),
            loss_mask=tuple(mask.tolist()),
            logprobs=tuple(rows.behaviour_BL[row, :length].tolist()),
            versions=tuple(np.where(mask, 0, -1).tolist()),
            temperatures=(1.0,) * length,
            turn_of_token=tuple(turns.tolist()),
            reward=float(rows.rewards_B[row]),
        )

    return [
        TrajectoryGroup(
            f"{group}",
            "t",
            tuple(trajectory(group * GROUP_SIZE + place) for place in range(GROUP_SIZE)),
        )
        for group in range(NUM_GROUPS)
    ]


def their_advantages(theirs: Theirs, rows: Rows, keys: dict[str, Any], values: bool) -> np.ndarray:
    """AReaL's advantages by token, in our places: AReaL's stand one place earlier, where the token
    is predicted."""
    config = theirs.config.PPOActorConfig(backend="fsdp:d1", **{"kl_ctl": 0.0, **keys})

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.float32))

    def earlier(array: np.ndarray) -> Tensor:
        return tensor(np.roll(array, -1, axis=1))

    places = np.arange(rows.trained_BL.shape[1])
    data = {
        "input_ids": torch.ones(rows.trained_BL.shape, dtype=torch.long),
        "loss_mask": tensor(rows.trained_BL),
        "attention_mask": torch.from_numpy(places < rows.length_B[:, None]),
        "logprobs": tensor(rows.behaviour_BL),
        "ref_logp": earlier(rows.reference_BL),
        "rewards": tensor(rows.rewards_B),
        **({"values": earlier(rows.values_BL)} if values else {}),
    }
    found = theirs.actor.PPOActor(config, None)._compute_advantages(data)["advantages"]
    return np.roll(found.numpy(), 1, axis=1)


def our_advantages(algorithm: Algorithm, rows: Rows) -> np.ndarray:
    def by_token(array: np.ndarray) -> list[list[np.ndarray]]:
        cut = [row[:length] for row, length in zip(array, rows.length_B, strict=True)]
        return [cut[group * GROUP_SIZE : (group + 1) * GROUP_SIZE] for group in range(NUM_GROUPS)]

    groups = as_groups(rows)
    if algorithm.shaping is not None:
        groups = algorithm.shaping(groups)
    evidence = Evidence(values=by_token(rows.values_BL), reference=by_token(rows.reference_BL))
    found_BL = np.zeros(rows.trained_BL.shape)
    flat = [row for group in algorithm.advantages(groups, evidence).advantages for row in group]
    for place, row in enumerate(flat):
        found_BL[place, : len(row)] = row
    return found_BL


@dataclass(frozen=True)
class Tokens:
    """Packed tokens of three sequences. T tokens; the third is masked."""

    current_T: Tensor
    proximal_T: Tensor
    behaviour_T: Tensor
    advantages_T: Tensor
    mask_T: Tensor
    sequences_T: Tensor
    ends_S: Tensor
    """Places where the sequences begin, and where the last ends."""


def random_tokens(seed: int) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 1, 7, 3])
    sequences_T = torch.arange(4).repeat_interleave(lengths)

    def normal() -> Tensor:
        return torch.randn(len(sequences_T), generator=generator, dtype=torch.float64)

    policies = [-(2.0 + 0.5 * normal()).abs() for _ in range(3)]
    ends_S = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    q_T, p_T, b_T = policies
    return Tokens(q_T, p_T, b_T, normal(), sequences_T != 3, sequences_T, ends_S)


def ours(objective: Objective, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The loss, a mean over tokens, and its derivatives."""
    current_T = tokens.current_T.clone().requires_grad_()
    ones_T = torch.ones_like(tokens.current_T)
    terms = PolicyTerms(
        current_T,
        tokens.proximal_T,
        tokens.behaviour_T,
        tokens.advantages_T,
        tokens.mask_T,
        tokens.sequences_T,
        groups_T=tokens.sequences_T,
        lags_T=ones_T,
        weights_T=ones_T,
        divisor=float(tokens.mask_T.sum()),
    )
    loss = objective(terms).terms_T.sum() / terms.divisor
    return loss.detach(), torch.autograd.grad(loss, current_T)[0]


def differentiated(loss_of: Callable[[Tensor], Tensor], at_T: Tensor) -> tuple[Tensor, Tensor]:
    current_T = at_T.clone().requires_grad_()
    loss = loss_of(current_T)
    return loss.detach(), torch.autograd.grad(loss, current_T)[0]


def distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
