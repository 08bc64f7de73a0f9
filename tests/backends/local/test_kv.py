from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.backends.local.forward.kv_cache import (
    KVRows,
    PrefixStore,
    SavedPrefix,
    Tokens,
    common_prefix,
)

CPU = torch.device("cpu")
TOKENS = st.lists(st.integers(0, 2), max_size=12).map(lambda t: np.asarray(t, dtype=np.int32))


def saved(*tokens: int) -> SavedPrefix:
    return SavedPrefix(np.asarray(tokens, dtype=np.int32), torch.zeros(1, 1, 1, len(tokens), 1))


def rows(*, max_rows: int = 4, budget_tokens: int = 4096) -> KVRows:
    return KVRows(
        num_layers=2,
        num_heads=2,
        head_dim=3,
        max_rows=max_rows,
        max_length=2048,
        budget_tokens=budget_tokens,
        device=CPU,
        dtype=torch.float32,
    )


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE / 1e6


def test_rows_that_are_not_used_take_no_memory() -> None:
    before = resident_mb()
    kv = KVRows(
        num_layers=8,
        num_heads=8,
        head_dim=64,
        max_rows=31,
        max_length=1024,
        budget_tokens=32 * 1024,
        device=CPU,
        dtype=torch.bfloat16,
    )
    kv.fit(1024, rows=1)
    kv.values[:, :, 0, :, :100] = 1.0
    assert kv.values.nbytes > 5e8
    assert kv.values[:, :, :2, :, :200].sum() == 8 * 2 * 8 * 100 * 64
    assert resident_mb() - before < 50


@given(TOKENS, TOKENS)
def test_the_common_prefix_is_the_longest_equal_beginning(a: Tokens, b: Tokens) -> None:
    length = common_prefix(a, b)
    assert a[:length].tolist() == b[:length].tolist()
    assert length == min(len(a), len(b)) or a[length] != b[length]


@given(st.lists(TOKENS.filter(len), max_size=8), TOKENS)
def test_the_store_finds_the_longest_shared_prefix(stored: list[Tokens], wanted: Tokens) -> None:
    store = PrefixStore(budget_bytes=1 << 20)
    for tokens in stored:
        store.save(saved(*tokens.tolist()))
    length, prefix = store.longest(wanted)
    assert length == max((common_prefix(tokens, wanted) for tokens in stored), default=0)
    assert (prefix is None) == (length == 0)
    if prefix is not None:
        assert common_prefix(prefix.tokens, wanted) == length


def test_a_longer_turn_replaces_the_prefix_it_extends() -> None:
    store = PrefixStore(budget_bytes=1000)
    store.save(saved(1, 2, 3))
    store.save(saved(1, 2, 3, 4))
    store.save(saved(1, 2))
    assert len(store) == 1
    assert store.num_bytes == 16


def test_the_least_recently_used_prefix_goes_first() -> None:
    store = PrefixStore(budget_bytes=24)
    store.save(saved(1, 1))
    store.save(saved(2, 2))
    store.save(saved(3, 3))
    store.longest(np.asarray([1, 1, 9], dtype=np.int32))
    store.save(saved(4, 4))
    assert store.longest(np.asarray([2, 2], dtype=np.int32))[0] == 0
    assert store.longest(np.asarray([1, 1], dtype=np.int32))[0] == 2
    assert store.num_bytes == 24


def test_what_can_never_fit_is_not_saved() -> None:
    store = PrefixStore(budget_bytes=8)
    store.save(saved(1, 1))
    store.save(saved(2, 2, 2))
    assert store.num_bytes == 8
    assert store.longest(np.asarray([1], dtype=np.int32))[0] == 1


def test_growing_keeps_what_the_rows_hold() -> None:
    kv = rows()
    kv.values[:, :, :2, :, :256].normal_()
    before = kv.values[:, :, :2, :, :256].clone()
    kv.fit(300, rows=2)
    assert kv.length == 512
    assert torch.equal(kv.values[:, :, :2, :, :256], before)


def test_room_for_long_rows_becomes_room_for_many_when_the_long_ones_are_gone() -> None:
    kv = rows(max_rows=16, budget_tokens=4096)
    kv.fit(2048, rows=2)
    kv.values[:, :, :1, :, :200].normal_()
    before = kv.values[:, :, :1, :, :200].clone()
    kv.fit(200, rows=10)
    assert kv.scratch_row >= 10
    assert torch.equal(kv.values[:, :, :1, :, :200], before)


def test_longer_rows_leave_room_for_fewer() -> None:
    kv = rows(max_rows=100, budget_tokens=4096)
    assert [kv.rows_at(length) for length in (1, 256, 257, 1024, 2048)] == [16, 16, 8, 4, 2]


def test_one_request_always_fits() -> None:
    assert rows(budget_tokens=1).rows_at(2048) == 1


def test_every_token_has_places_of_its_own_and_padding_takes_nobodys() -> None:
    kv = rows()
    used = kv.rows_at(kv.length)
    grid = torch.cartesian_prod(torch.arange(used), torch.arange(kv.length))
    places = kv.index(grid[:, 0], grid[:, 1])
    assert len(set(places.tolist())) == len(places) == 2 * 2 * used * kv.length
    scratch = kv.index(torch.tensor([kv.scratch_row]), torch.tensor([0]))
    assert not torch.isin(scratch, places).any()
    assert scratch.max() < kv.values[0].numel() // 3


def test_written_kv_is_found_by_row_kind_head_and_position() -> None:
    kv = rows()
    place = kv.index(torch.tensor([1]), torch.tensor([7]))
    kv.values[0].view(-1, 3).index_copy_(0, place, torch.arange(12.0).view(4, 3))
    assert kv.values[0, :, 1, :, 7].flatten().tolist() == list(range(12))
