"""Token logprobs without the float32 logits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from areal_sdk.algorithms.batch import make_batch
from areal_sdk.algorithms.examples import make_example
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.fsdp import policy
from areal_sdk.fsdp.policy import load_policy, token_logprobs
from areal_sdk.fsdp.tree_attention import attention_blocks

from .episodes import make_groups


@pytest.mark.parametrize("chunk_elements", [1, 200, 10**6])
def test_logprobs_and_gradients_are_those_of_log_softmax(
    chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    temperatures = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0])
    rows, targets = torch.tensor([0, 1, 1, 3, 4, 4, 4]), torch.tensor([7, 0, 49, 3, 5, 5, 6])
    upstream = torch.randn(7, generator=generator)

    ours, entropies = token_logprobs(hidden, weight, temperatures, rows, targets)
    distributions = torch.log_softmax(hidden @ weight.t() / temperatures[:, None], -1)
    reference = distributions[rows, targets]
    torch.testing.assert_close(ours, reference)
    assert not entropies.requires_grad
    torch.testing.assert_close(
        entropies, -(distributions.exp() * distributions).sum(-1)[rows].detach()
    )
    for got, expected in zip(
        torch.autograd.grad((ours * upstream).sum(), (hidden, weight)),
        torch.autograd.grad((reference * upstream).sum(), (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_nearly_certain_token_keeps_its_small_gradient_in_bfloat16() -> None:
    # p = 0.999: one minus p, each rounded to bfloat16 first, would be 0.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[6.90625], [0.0]])  # logits 6.9 and 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprob, _ = token_logprobs(
            hidden, weight, torch.ones(1), torch.tensor([0]), torch.tensor([0])
        )
    [grad] = torch.autograd.grad(logprob.sum(), hidden)
    expected = 6.90625 * (1 - 1 / (1 + torch.tensor(-6.90625).exp()))
    assert grad.item() == pytest.approx(expected.item(), rel=0.02)


@pytest.mark.parametrize("chunk_elements", [1, 200, 10**6])
def test_an_entropy_that_was_asked_for_has_the_gradient_of_the_entropy(
    chunk_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    temperatures = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0])
    rows, targets = torch.tensor([0, 1, 1, 3, 4, 4, 4]), torch.tensor([7, 0, 49, 3, 5, 5, 6])
    upstream, of_entropy = torch.randn(2, 7, generator=generator)

    ours, entropies = token_logprobs(
        hidden, weight, temperatures, rows, targets, entropy_gradient=True
    )
    logits = hidden.double() @ weight.double().t() / temperatures[:, None]
    distributions = torch.log_softmax(logits, -1)
    expected_entropies = -(distributions.exp() * distributions).sum(-1)[rows]
    torch.testing.assert_close(entropies, expected_entropies.float())
    loss = (ours * upstream + entropies * of_entropy).sum()
    expected = (distributions[rows, targets] * upstream + expected_entropies * of_entropy).sum()
    for got, reference in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, reference, atol=1e-5, rtol=1e-5)


def test_gradients_of_logprob_and_entropy_are_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    temperatures = torch.tensor([1.0, 0.7, 1.0], dtype=torch.float64)
    rows, targets = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 6, 2, 3])

    def both(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(hidden, weight, temperatures, rows, targets, entropy_gradient=True)

    assert torch.autograd.gradcheck(both, (hidden, weight), eps=1e-3, atol=2e-3)  # of float32


def test_an_exact_head_rounds_no_logits(model_dir: Path) -> None:
    [group] = make_groups(1)
    example = make_example(
        group.trajectories[0], np.ones(len(group.trajectories[0].tokens), dtype=np.float32)
    )
    assert example is not None
    batch = make_batch(build_trees([example.inputs], max_tokens=999), [example], version=0)

    def error(*, exact_head: bool) -> float:
        policy = load_policy(model_dir, exact_head=exact_head)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs_T, _ = policy(batch)
            hidden_NH = policy.model.base_model(
                batch.tokens_N[None],
                position_ids=batch.positions_N[None],
                use_cache=False,
                blocks=attention_blocks(batch.trees),
            ).last_hidden_state[0]
        logits_RV = hidden_NH.float()[batch.nodes_R] @ policy.head.weight.t()
        expected = torch.log_softmax(logits_RV, -1)[batch.rows_T, batch.targets_T]
        return float((logprobs_T - expected).abs().max().detach())

    assert error(exact_head=True) < 1e-5 < 1e-4 < error(exact_head=False)
