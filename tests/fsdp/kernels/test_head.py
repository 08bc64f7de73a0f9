"""Token logprobs and entropies without the float32 logits, and without all logits at once."""

import pytest
import torch

from areal_sdk.fsdp.kernels import head
from areal_sdk.fsdp.kernels.head import token_logprobs
from tests.toolbox.measured_memory import measure_bytes

SIZES = pytest.mark.parametrize(
    ("chunk_bytes", "piece_elements"), [(1, 1), (400, 10**6), (600, 50), (10**6, 1), (10**6, 10**6)]
)
"""Sizes for five rows with 50 logits of four bytes: chunks of one, two and three rows, and one of
all."""

TEMPERATURES = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0])
ROWS, TARGETS = torch.tensor([0, 1, 1, 3, 4, 4, 4]), torch.tensor([7, 0, 49, 3, 5, 5, 6])


def five_rows(*, seed: int, num_upstream: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, the weight, and as many upstream gradients of the seven targets."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(5, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    return hidden, weight, torch.randn(num_upstream, 7, generator=generator)


@SIZES
def test_logprobs_and_gradients_are_those_of_log_softmax(
    chunk_bytes: int, piece_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(head, "PIECE_ELEMENTS", piece_elements)
    hidden, weight, [upstream] = five_rows(seed=0, num_upstream=1)

    ours, entropies = token_logprobs(hidden, weight, TEMPERATURES, ROWS, TARGETS)
    distributions = torch.log_softmax(hidden @ weight.t() / TEMPERATURES[:, None], -1)
    reference = distributions[ROWS, TARGETS]
    torch.testing.assert_close(ours, reference)
    assert not entropies.requires_grad
    torch.testing.assert_close(
        entropies, -(distributions.exp() * distributions).sum(-1)[ROWS].detach()
    )
    for got, expected in zip(
        torch.autograd.grad((ours * upstream).sum(), (hidden, weight)),
        torch.autograd.grad((reference * upstream).sum(), (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@SIZES
def test_capped_logits_have_the_logprobs_entropies_and_gradients_of_the_caps(
    chunk_bytes: int, piece_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(head, "PIECE_ELEMENTS", piece_elements)
    hidden, weight, [upstream, of_entropy] = five_rows(seed=2, num_upstream=2)
    ours, entropies = token_logprobs(
        hidden, weight, TEMPERATURES, ROWS, TARGETS, entropy_gradient=True, cap=2.0
    )
    capped = 2.0 * torch.tanh(hidden.double() @ weight.double().t() / 2.0)
    distributions = torch.log_softmax(capped / TEMPERATURES[:, None], -1)
    reference = distributions[ROWS, TARGETS]
    expected_entropies = -(distributions.exp() * distributions).sum(-1)[ROWS]
    torch.testing.assert_close(ours, reference.float())
    torch.testing.assert_close(entropies, expected_entropies.float())
    loss = (ours * upstream + entropies * of_entropy).sum()
    expected = (reference * upstream + expected_entropies * of_entropy).sum()
    for got, wanted in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


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


@SIZES
def test_an_entropy_that_was_asked_for_has_the_gradient_of_the_entropy(
    chunk_bytes: int, piece_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(head, "PIECE_ELEMENTS", piece_elements)
    hidden, weight, [upstream, of_entropy] = five_rows(seed=1, num_upstream=2)

    ours, entropies = token_logprobs(
        hidden, weight, TEMPERATURES, ROWS, TARGETS, entropy_gradient=True
    )
    logits = hidden.double() @ weight.double().t() / TEMPERATURES[:, None]
    distributions = torch.log_softmax(logits, -1)
    expected_entropies = -(distributions.exp() * distributions).sum(-1)[ROWS]
    torch.testing.assert_close(entropies, expected_entropies.float())
    loss = (ours * upstream + entropies * of_entropy).sum()
    expected = (distributions[ROWS, TARGETS] * upstream + expected_entropies * of_entropy).sum()
    for got, reference in zip(
        torch.autograd.grad(loss, (hidden, weight)),
        torch.autograd.grad(expected, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, reference, atol=1e-5, rtol=1e-5)


def test_the_entropy_of_large_logits_keeps_its_digits() -> None:
    hidden, weight = torch.tensor([[1000.0]]), torch.tensor([[1.0], [0.999], [0.998]])
    logits = (hidden.double() @ weight.double().t())[0]
    expected = -(logits.softmax(-1) * logits.log_softmax(-1)).sum().item()
    row = torch.tensor([0])
    _, entropy = token_logprobs(hidden, weight, torch.ones(1), row, row)
    assert entropy.item() == pytest.approx(expected, rel=1e-4)


def test_gradients_of_logprob_and_entropy_are_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    temperatures = torch.tensor([1.0, 0.7, 1.0], dtype=torch.float64)
    rows, targets = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 6, 2, 3])

    def both(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(hidden, weight, temperatures, rows, targets, entropy_gradient=True)

    assert torch.autograd.gradcheck(both, (hidden, weight), eps=1e-3, atol=2e-3)  # of float32


NUM_ROWS, WIDTH, VOCABULARY = 300, 64, 2000


def lone_head(dtype: torch.dtype, *, chunk_bytes: int) -> list[torch.Tensor]:
    """Logprobs, entropies, and the gradients of the hidden states and the weight, of seeded input."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(NUM_ROWS, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    temperatures = 0.5 + torch.rand(NUM_ROWS, generator=generator)
    rows = torch.randint(0, NUM_ROWS, (400,), generator=generator)
    targets = torch.randint(0, VOCABULARY, (400,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "CHUNK_BYTES", chunk_bytes)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            logprobs, entropies = token_logprobs(
                hidden, weight, temperatures, rows, targets, entropy_gradient=True
            )
        gradients = torch.autograd.grad(logprobs.mean() + entropies.mean(), (hidden, weight))
    return [logprobs.detach(), entropies.detach(), *gradients]


def test_a_batch_in_chunks_equals_the_batch_in_one() -> None:
    in_one = lone_head(torch.float32, chunk_bytes=10**9)
    in_chunks = lone_head(torch.float32, chunk_bytes=7 * VOCABULARY * 4)
    for got, expected in zip(in_chunks[:2], in_one[:2], strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-6)
    for got, expected in zip(in_chunks[2:], in_one[2:], strict=True):
        assert (got - expected).norm() < 1e-5 * expected.norm()


def test_many_chunks_in_bfloat16_are_no_further_from_float32_than_one() -> None:
    exact = lone_head(torch.float32, chunk_bytes=10**9)
    in_one = lone_head(torch.bfloat16, chunk_bytes=10**9)
    in_chunks = lone_head(torch.bfloat16, chunk_bytes=7 * VOCABULARY * 2)
    for one, chunks, expected in zip(in_one, in_chunks, exact, strict=True):
        assert (chunks - expected).norm() < 1.1 * (one - expected).norm()


def test_the_memory_of_many_chunks_is_that_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk_bytes = 2**20
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(head, "PIECE_ELEMENTS", 2**14)
    weight = torch.randn(4096, 8, requires_grad=True)

    def peak(num_rows: int) -> int:
        hidden = torch.randn(num_rows, 8, requires_grad=True)
        rows = torch.arange(num_rows)

        def forward_and_backward() -> None:
            logprobs, _ = token_logprobs(hidden, weight, torch.ones(num_rows), rows, rows)
            torch.autograd.backward(logprobs.sum())

        measured = measure_bytes(forward_and_backward)
        weight.grad = None
        return measured.peak

    two, many = peak(128), peak(2048)
    assert many < two + 2048 * 200  # what is as long as the batch, and not as wide
    assert two < 3.5 * chunk_bytes < 32 * chunk_bytes == 2048 * 4096 * 4


def test_without_a_backward_pass_no_logits_are_kept() -> None:
    hidden, weight = torch.randn(64, 8), torch.randn(4096, 8, requires_grad=True)
    rows = torch.arange(64)

    def forward() -> object:
        with torch.no_grad():
            return token_logprobs(hidden, weight, torch.ones(64), rows, rows)

    assert measure_bytes(forward).left < 64 * 4096


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    hidden = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(50, 8)
    rows = torch.arange(4)
    logprobs, _ = token_logprobs(hidden, weight, torch.ones(4), rows, rows)
    torch.autograd.backward(logprobs.sum())
    assert hidden.grad is not None
    assert weight.grad is None
