"""Rows are nobody else's, memory is never exceeded, and everyone finishes, whatever comes and goes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.backends.local.forward.kv_cache import KVRows, PrefixStore
from areal_sdk.backends.local.sampling import SamplerRow
from areal_sdk.backends.local.scheduler import Scheduler, Work
from areal_sdk.backends.local.sequence import Sequence, StopRule

BUDGET_TOKENS = 2048
MAX_LENGTH = 1024
PREFILL_CHUNK = 200


class World:
    """A scheduler and a stand-in for the forward: a token's KV is the token itself."""

    def __init__(self, *, deterministic: bool) -> None:
        self.kv = KVRows(
            num_layers=1,
            num_heads=1,
            head_dim=1,
            max_rows=5,
            max_length=MAX_LENGTH,
            budget_tokens=BUDGET_TOKENS,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        self.scheduler = Scheduler(
            self.kv,
            PrefixStore(8000),
            max_running=5,
            prefill_chunk=PREFILL_CHUNK,
            deterministic=deterministic,
        )
        self.unfinished: list[Sequence] = []
        self.epoch = 0

    def add(self, shared: int, own: int, num_new: int) -> None:
        tokens = [*range(1, shared + 1), *(1000 + own * 500 + i for i in range(own))]
        sequence = Sequence(
            np.asarray(tokens, dtype=np.int32),
            SamplerRow(),
            StopRule(min(num_new, MAX_LENGTH - len(tokens)), frozenset()),
        )
        self.unfinished.append(sequence)
        self.scheduler.add(sequence)

    def cancel(self, index: int) -> None:
        if self.unfinished:
            sequence = self.unfinished.pop(index % len(self.unfinished))
            self.scheduler.remove(sequence)

    def change_weights(self) -> None:
        self.epoch += 1
        self.scheduler.weights_changed(keep_kv=False)

    def step(self) -> None:
        work = self.scheduler.plan()
        assert work or not self.unfinished, "nobody is served although somebody waits"
        running = self.scheduler.running
        assert len(running) <= self.kv.scratch_row
        assert self.kv.scratch_row * self.kv.length <= BUDGET_TOKENS
        assert sum(item.num_new for item in work if item.num_new > 1) <= PREFILL_CHUNK
        assert len({item.row for item in work}) == len(work)
        for item in work:
            assert running[item.row] is item.sequence
            self.compute(item)
        complete = [item.sequence for item in work if item.reaches_end]
        for item in work:
            item.sequence.num_computed += item.num_new
        for sequence in complete:
            sequence.output.append(7)
        for sequence in complete:
            if sequence.stop.check(sequence.output):
                self.unfinished.remove(sequence)
                self.scheduler.remove(sequence)

    def compute(self, item: Work) -> None:
        """Write this step's KV; what is there already must be this sequence's, of these weights."""
        tokens = item.sequence.tokens().astype(np.float32) + self.epoch * 100_000
        start, stop = item.sequence.num_computed, item.sequence.num_computed + item.num_new
        row = self.kv.values[0, 0, item.row, 0, :, 0]
        assert row[:start].tolist() == tokens[:start].tolist()
        row[start:stop] = torch.from_numpy(tokens[start:stop])


ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 300), st.integers(1, 300), st.integers(1, 40)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("weights")),
    st.tuples(st.just("step"), st.integers(1, 12)),
)


@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=25), st.booleans())
def test_random_traffic_is_served_from_the_right_kv_within_memory(
    actions: list[tuple[str, ...]], deterministic: bool
) -> None:
    world = World(deterministic=deterministic)
    for name, *numbers in actions:
        if name == "add":
            world.add(*map(int, numbers))
        elif name == "cancel":
            world.cancel(int(numbers[0]))
        elif name == "weights":
            world.change_weights()
        else:
            for _ in range(int(numbers[0])):
                world.step()
    for _ in range(20_000):
        if not world.unfinished:
            break
        world.step()
    assert not world.unfinished
    assert not world.scheduler.running
    assert not world.scheduler.waiting
