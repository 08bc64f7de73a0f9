"""The pretended device itself: it computes as the CPU does, refuses what CUDA refuses, and counts what CUDA waits for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.pretended import watch
from tests.pretended.counting import Kind


@pytest.fixture
def x_host() -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def x(x_host: Tensor, device: torch.device) -> Tensor:
    return x_host.to(device)


def test_numbers_are_those_of_the_cpu_and_views_share_memory(x: Tensor, x_host: Tensor) -> None:
    assert x.device.type == "pretended"
    assert not x.is_cpu
    assert torch.equal((x * 2 + 1).cpu(), x_host * 2 + 1)
    assert torch.equal((x.remainder(2.0) > 1).cpu(), x_host.remainder(2.0) > 1)
    view = x[1:3].t()
    view.zero_()
    assert view.device == x.device
    assert x[1:3].cpu().abs().sum() == 0.0
    assert x.detach().device == x.view(-1).reshape(5, 4).device == x.device


def test_results_keep_the_shape_that_an_operator_gave_them(x: Tensor, x_host: Tensor) -> None:
    out = torch.empty(0, device=x.device)
    torch.mm(x, x.t(), out=out)
    assert out.shape == (4, 4)
    assert torch.equal(out.unsqueeze_(0).cpu(), torch.mm(x_host, x_host.t())[None])


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, host: x + host,
        lambda x, host: torch.mm(x, host.t()),
        lambda x, host: torch.cat([host, x]),
        lambda x, host: F.embedding(torch.tensor([1]), x),
        lambda x, host: host.add_(x),
        lambda x, host: x.masked_fill_(host > 0, 0.0),
    ],
    ids=["add", "mm", "cat", "embedding", "into the host", "mask"],
)
def test_tensors_of_host_and_device_do_not_mix(
    x: Tensor, x_host: Tensor, mix: Callable[[Tensor, Tensor], Tensor]
) -> None:
    with pytest.raises(RuntimeError, match=r"same device|at least two devices"):
        mix(x, x_host)


def test_a_number_of_the_host_may_be_used(x: Tensor, x_host: Tensor) -> None:
    with watch() as seen:
        shifted = x + torch.tensor(1.0)
    assert seen.num_waits == 0
    assert torch.equal(shifted.cpu(), x_host + 1.0)


@pytest.mark.parametrize(
    ("waits", "act"),
    [
        (0, lambda x: (x @ x.t()).relu_()),
        (0, lambda x: torch.where(x > 0, x, 0.0).sum()),
        (0, lambda x: x.masked_fill_(x > 0, 0.0)),
        (0, lambda x: x[torch.zeros(2, dtype=torch.int64, device=x.device)]),
        (0, lambda x: torch.ones(3).to(x.device, non_blocking=True)),
        (0, lambda x: x.repeat_interleave(2, 0)),
        (1, lambda x: x.sum().item()),
        (1, lambda x: x.tolist()),
        (1, lambda x: x.cpu()),
        (1, lambda x: bool((x > 0).any())),
        (1, torch.nonzero),
        (1, lambda x: x[x[:, 0] > 0].shape),
        (1, lambda x: x[torch.tensor([0, 1])]),
        (1, lambda x: torch.tensor([1, 2], device=x.device)),
        (1, lambda x: torch.equal(x, x)),
    ],
)
def test_a_wait_is_counted(x: Tensor, waits: int, act: Callable[[Tensor], object]) -> None:
    with watch() as seen:
        act(x)
    kinds = [request.kind for request in seen.counts if request.kind in (Kind.READ, Kind.UPLOAD)]
    if waits:
        assert kinds, seen.report()
    assert bool(seen.num_waits) == bool(waits), seen.report()


def test_launches_and_bytes_are_counted(x: Tensor) -> None:
    with watch() as seen:
        (x @ x.t()).relu_()
        x.view(-1)
        x.cpu()
    assert (seen.num_launches, seen.num_waits, seen.num_copied) == (2, 1, 80)


def test_training_is_that_of_the_cpu(x_host: Tensor, device: torch.device) -> None:
    """Autograd, tied weights, clipping, the fused AdamW."""

    def trained(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        ends = nn.Linear(5, 16, bias=False), nn.Linear(5, 16, bias=False)
        ends[1].weight = ends[0].weight
        model = nn.Sequential(*ends[:1], nn.LayerNorm(16), nn.Linear(16, 5), ends[1]).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        targets = torch.zeros(4, dtype=torch.int64, device=device)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x_host.to(device)), targets).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for mine, theirs in zip(trained(torch.device("cpu")), trained(device), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_autocast_computes_products_in_half_precision_and_norms_not(x: Tensor) -> None:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        assert (x @ x.t()).dtype is torch.bfloat16
        assert (x @ x.t()).softmax(-1).dtype is torch.float32
        assert F.layer_norm(x.bfloat16(), (5,)).dtype is torch.float32


def test_attention_is_one_launch(device: torch.device) -> None:
    q_host = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(0))
    q = q_host.to(device)
    with torch.inference_mode(), watch() as seen:
        mixed = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert seen.num_launches == 1, seen.report()
    expected = F.scaled_dot_product_attention(q_host, q_host, q_host, is_causal=True)
    torch.testing.assert_close(mixed.cpu(), expected)
