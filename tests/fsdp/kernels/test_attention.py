"""Tree attention equals what each trajectory computes alone."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from areal_sdk.algorithms.packing import Tree
from areal_sdk.fsdp.kernels import fused_attention
from areal_sdk.fsdp.kernels.blocks import RowBlocks, attention_blocks
from areal_sdk.fsdp.kernels.tree_attention import tree_attention
from tests.algorithms.trees import paths, trees_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

HEADS, KEY_HEADS, DIM = 6, 2, 8


def forest(seed: int = 0) -> list[np.ndarray]:
    """Two prompts; below each, branches that branch again."""
    rng = np.random.default_rng(seed)
    sequences = []
    for start in (1, 2):
        prompt = [start, *rng.integers(0, 9, 11)]
        for _ in range(3):
            call = [*prompt, *rng.integers(0, 9, 4)]
            sequences += [np.array([*call, *rng.integers(0, 9, n)]) for n in (2, 7)]
        sequences.append(np.array([*prompt, *rng.integers(0, 9, 30)]))
    return sequences


@pytest.mark.parametrize("window", [None, 1, 3, 17, 1000])
@pytest.mark.parametrize("block_tokens", [1, 4, 16, 1000])
def test_each_branch_sees_exactly_its_own_past_or_a_window_of_it(
    block_tokens: int, window: int | None
) -> None:
    trees = trees_of(forest())
    num_tokens = sum(len(tree) for tree in trees)
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> Tensor:
        return torch.randn(1, heads, num_tokens, DIM, generator=generator, requires_grad=True)

    q, k, v = draw(HEADS), draw(KEY_HEADS), draw(KEY_HEADS)
    upstream = torch.randn(1, num_tokens, HEADS, DIM, generator=generator)

    blocks = RowBlocks(trees, block_tokens=block_tokens)
    out, _ = tree_attention(
        nn.Identity(), q, k, v, None, blocks=blocks, scaling=DIM**-0.5, sliding_window=window
    )
    gradients = torch.autograd.grad((out * upstream).sum(), (q, k, v))

    # Every node once, through one of the trajectories that pass through it.
    expected = torch.zeros_like(out)
    offset = 0
    for tree in trees:
        for path in paths(tree):
            nodes = torch.from_numpy(path) + offset
            seen = torch.ones(len(path), len(path), dtype=torch.bool).tril()
            alone = F.scaled_dot_product_attention(
                q[:, :, nodes],
                k[:, :, nodes],
                v[:, :, nodes],
                attn_mask=seen if window is None else seen.triu(1 - window),
                enable_gqa=True,
            )
            expected = expected.index_copy(1, nodes, alone.transpose(1, 2))
        offset += len(tree)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(
        gradients, torch.autograd.grad((expected * upstream).sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_blocks_cover_every_query_once() -> None:
    trees = trees_of(forest())
    for block_tokens in (1, 3, 16, 1000):
        blocks = attention_blocks(trees, block_tokens=block_tokens)
        covered = [i for block in blocks for i in range(block.start, block.stop)]
        assert covered == list(range(sum(len(tree) for tree in trees)))


def test_the_longest_path_is_that_of_the_longest_sequence() -> None:
    sequences = forest()
    blocks = RowBlocks(trees_of(sequences))
    assert blocks.longest_path == max(map(len, sequences)) < blocks.num_tokens


def test_a_long_prompt_needs_no_large_mask() -> None:
    prompt = np.arange(3000)
    trees = trees_of([np.append(prompt, [i, i]) for i in range(4)])
    blocks = attention_blocks(trees, block_tokens=512)
    masks = [block.hidden_QC for block in blocks]
    assert max(mask.numel() for mask in masks if mask is not None) <= 512 * 512


def test_what_no_token_of_a_window_sees_is_not_computed() -> None:
    trees = trees_of([np.append(np.arange(3000), [i, i]) for i in range(4)])
    for block in RowBlocks(trees, block_tokens=512).within(100):
        num_keys = sum(stop - start for start, stop in block.key_ranges)
        assert num_keys <= 512 + 99
        assert block.hidden_QC is not None
        assert block.hidden_QC.shape == (block.stop - block.start, num_keys)


def test_large_biases_of_keys_cost_bfloat16_no_more_than_they_cost_torch() -> None:
    """Qwen2.5 has such biases: the scores of a query are all large, and differ little."""
    generator = torch.Generator().manual_seed(0)
    tokens, dim = 64, 32
    [tree] = trees_of([np.arange(tokens)])
    q = torch.randn(1, 4, tokens, dim, generator=generator)
    bias = 60 * torch.randn(1, 2, 1, dim, generator=generator)
    k = (torch.randn(1, 2, tokens, dim, generator=generator) + bias).bfloat16()
    v = torch.randn(1, 2, tokens, dim, generator=generator)
    q, v = (x.bfloat16() for x in (q, v))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).double()

    blocks = RowBlocks([tree])
    ours, _ = tree_attention(nn.Identity(), q, k, v, None, blocks=blocks, scaling=dim**-0.5)
    exact = plain(q.double(), k.double(), v.double())
    error, theirs = ((x - exact).abs().mean() for x in (ours, plain(q, k, v)))
    assert error < 2 * theirs


def long_trees() -> list[Tree]:
    """A prompt with branches that are blocks of their own, one that is longer than a block, and a lone sequence."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 99, 1200)
    answers = [np.append(prompt, [i, *rng.integers(0, 99, n)]) for i, n in enumerate((3, 300, 700))]
    return trees_of([*answers, rng.integers(0, 99, 900)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernels_compute_what_blocks_with_scores_compute(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and dtype is torch.float32:
        pytest.skip("CUDA's kernels take half precision only")
    dim, generator = 64, torch.Generator().manual_seed(0)
    blocks = RowBlocks(long_trees(), device=device)
    parts = [block for block in blocks.whole if block.in_parts]
    assert {(b.hidden_QC is None, bool(b.context)) for b in parts} == {
        (True, False),
        (True, True),
        (False, True),
    }
    assert fused_attention.can_fuse(torch.device(device), dtype, dim)

    def draw(heads: int) -> Tensor:
        drawn = torch.randn(1, heads, blocks.num_tokens, dim, generator=generator)
        return drawn.to(device, dtype).requires_grad_()

    states = draw(HEADS), draw(KEY_HEADS), draw(KEY_HEADS)
    upstream = draw(HEADS)[0].transpose(0, 1)[None].detach()

    def both_passes() -> list[Tensor]:
        out, _ = tree_attention(nn.Identity(), *states, None, blocks=blocks, scaling=dim**-0.5)
        return [out, *torch.autograd.grad((out * upstream).sum(), states)]

    fused = both_passes()
    monkeypatch.setattr(fused_attention, "can_fuse", lambda *_: False)
    tolerance = 1e-5 if dtype is torch.float32 else 0.01
    for one, other in zip(fused, both_passes(), strict=True):
        assert (one - other).norm() < tolerance * other.norm()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_kernels_may_be_tried_for_the_first_time_in_a_layer_that_is_computed_again(
    use_reentrant: bool,
) -> None:
    fused_attention.can_fuse.cache_clear()
    blocks, dim = RowBlocks(long_trees()), 16
    states = [
        torch.randn(1, heads, blocks.num_tokens, dim, requires_grad=True) for heads in (4, 2, 2)
    ]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = tree_attention(nn.Identity(), q, k, v, None, blocks=blocks, scaling=1.0)
        return out

    out = checkpoint(attend, *states, use_reentrant=use_reentrant)
    out.sum().backward()
    assert all(state.grad is not None for state in states)


def test_kernels_that_are_missing_or_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = torch.device("cpu"), torch.float32, 24
    attend = fused_attention.attend

    def wrong(*states: Tensor, is_causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
        out, lse = attend(*states, is_causal=is_causal, scaling=scaling)
        return out, lse + 1.0

    def missing(*states: Tensor, is_causal: bool, scaling: float) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no kernel")

    for broken in (wrong, missing):
        fused_attention.can_fuse.cache_clear()
        monkeypatch.setattr(fused_attention, "attend", broken)
        assert not fused_attention.can_fuse(*asked)
    fused_attention.can_fuse.cache_clear()
    monkeypatch.setattr(fused_attention, "attend", attend)
    assert fused_attention.can_fuse(*asked)
