"""Experts sorted by rows equal experts one by one, and idle ones learn nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from areal_sdk.fsdp.kernels.experts import sorted_experts

NUM_EXPERTS, HIDDEN, INNER = 8, 32, 24
CHOSEN = torch.tensor([[3, 0], [0, 3], [6, 0], [3, 6], [6, 7]])
IDLE = [1, 2, 4, 5]


def leaves(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Hidden states of five tokens, the weights of their two experts each, and both parameters."""
    torch.manual_seed(0)
    shapes = [
        (5, HIDDEN),
        (5, 2),
        (NUM_EXPERTS, 2 * INNER, HIDDEN),
        (NUM_EXPERTS, HIDDEN, INNER),
    ]
    return [(0.3 * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes]


def sorted_(hidden: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    experts: Any = SimpleNamespace(gate_up_proj=gate_up, down_proj=down, act_fn=F.silu)
    return sorted_experts(experts, hidden, CHOSEN, weights)


def one_by_one(hidden: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    tokens = []
    for token, chosen in enumerate(CHOSEN.tolist()):
        made = []
        for place, expert in enumerate(chosen):
            gate, up = (gate_up[expert] @ hidden[token]).chunk(2)
            made.append(weights[token, place] * (down[expert] @ (F.silu(gate) * up)))
        tokens.append(sum(made[1:], made[0]))
    return torch.stack(tokens)


def gradients(function: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of a scalar in which every output counts differently."""
    output = function(*inputs)
    factors = torch.linspace(-1.0, 1.0, output.numel()).view_as(output)
    return list(torch.autograd.grad((output.float() * factors).sum(), inputs))


def test_outputs_and_gradients_equal_those_of_experts_one_by_one() -> None:
    torch.testing.assert_close(sorted_(*leaves()), one_by_one(*leaves()))
    for found, expected in zip(
        gradients(sorted_, leaves()), gradients(one_by_one, leaves()), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_an_expert_without_a_row_has_a_gradient_of_zeros_whatever_a_kernel_leaves_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels of some GPUs leave anything there: they write only the groups that have rows."""
    plain = F.grouped_mm

    def careless(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        product = plain(a, b, offs=offs)
        if product.ndim == 3:
            product[IDLE] = float("nan")
        return product

    expected = gradients(sorted_, leaves())
    monkeypatch.setattr(F, "grouped_mm", careless)
    found = gradients(sorted_, leaves())
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    for of_experts in found[2:]:
        assert not of_experts[IDLE].any()
        assert of_experts[0].any()


def test_under_autocast_experts_are_computed_in_its_type_and_their_gradients_are_float32() -> None:
    rounded = leaves(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sorted_(*leaves())
        ours = gradients(sorted_, leaves())
    hidden, _, gate_up, down = rounded
    expected = sorted_(hidden, leaves()[1], gate_up, down)
    assert found.dtype is torch.float32, "the type of the stream"
    assert torch.equal(found.bfloat16(), expected)
    for mine, theirs in zip(ours, gradients(one_by_one, leaves()), strict=True):
        assert mine.dtype is torch.float32
        torch.testing.assert_close(mine, theirs, atol=0.05, rtol=0.05)
