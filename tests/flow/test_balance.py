"""Whatever happens to the episodes, the flow loses none, and its gate never stays shut."""

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.flow import Drop
from areal_sdk.telemetry.ledger import DropReason, Ledger
from tests.flow.plain import PlainFlow, PlainGroup, PlainMember

Draw = Callable[[int], int]
"""A number from 0 to its argument, the argument not included."""


class Books:
    """Drives a flow as a run does, and counts each episode where the flow says that it is."""

    def __init__(self, flow: PlainFlow, draw: Draw) -> None:
        self.flow = flow
        self.draw = draw
        self.ledger = Ledger()

    def check(self) -> None:
        """Running, buffered and trained episodes are where the flow says; slots stay below the bound."""
        flow, gate = self.flow, self.flow.rules.gate
        self.ledger.check()
        open_members = sum(len(group.members) for group in flow.open)
        finished = sum(len(group.members) for group in flow.finished)
        assert self.ledger.buffered == open_members + finished
        assert self.ledger.running == flow.num_running <= gate.max_inflight
        assert flow.num_slots_held <= (flow.version + gate.max_staleness + 1) * gate.batch

    def start_all(self) -> None:
        while self.flow.has_room():
            group = self.flow.start(is_idle=self.draw(3) == 0)
            self.ledger.start(group.size)
            self.check()

    def sample(self) -> None:
        """Every running sibling samples a token."""
        for group in self.flow.open:
            for sibling, age in group.ages.items():
                group.ages[sibling] = self.flow.version if age is None else age

    def end_one(self) -> None:
        """A sibling of some open group ends, with a reward, without, or without a trained token."""
        groups = list(self.flow.open)
        if not groups:
            return
        group = groups[self.draw(len(groups))]
        running = list(group.ages)
        sibling = running[self.draw(len(running))]
        first = group.ages.pop(sibling)
        fate = self.draw(8)
        if fate == 0 or first is None:
            self.flow.reject(group)
            self.ledger.drop(DropReason.ERROR_AGENT)
            if self.flow.rules.drops_incomplete:
                group.give_up = DropReason.GROUP_INCOMPLETE
        else:
            versions = () if fate == 1 else tuple(range(first, self.flow.version + 1))
            self.flow.accept(group, PlainMember(group.order, sibling, versions))
            self.ledger.buffer()
        self.resolve_if_whole(group)
        self.check()

    def resolve_if_whole(self, group: PlainGroup) -> None:
        if not group.ages and (reason := self.flow.resolve(group)):
            self.ledger.drop(reason, len(group.members), buffered=True)

    def serve_next(self) -> None:
        """The engines serve one more version; siblings that no step can train are cut off."""
        for stop in self.flow.set_version(self.flow.version + 1):
            del stop.group.ages[stop.sibling]
            self.flow.reject(stop.group)
            self.ledger.drop(stop.reason)
            self.resolve_if_whole(stop.group)
        self.check()

    def book(self, drops: list[Drop[PlainMember, PlainGroup]]) -> None:
        for drop in drops:
            self.ledger.drop(drop.reason, len(drop.members), buffered=True)
        self.check()

    def step(self) -> None:
        """Play until a batch can be cut, train it, and serve the next version."""
        version = self.flow.version
        self.flow.begin_cut(version)
        for _ in range(10_000):
            self.start_all()
            self.book(self.flow.shed())
            if self.flow.is_enough():
                break
            is_alive = self.flow.open or self.flow.has_room()
            assert is_alive, "the gate is shut, nothing runs and no batch is full"
            self.sample()
            self.end_one()
        assert self.flow.cut_time(0.0) is not None, "a batch never filled"
        taken = self.flow.cut()
        oldest = [
            age for group in taken for m in group.members if (age := m.oldest_version) is not None
        ]
        assert all(version - age <= self.flow.rules.gate.max_staleness for age in oldest)
        assert len(taken) == self.flow.rules.groups_per_batch
        self.ledger.train(sum(len(group.members) for group in taken))
        self.check()
        self.serve_next()


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    eta=st.integers(0, 3),
    group_size=st.integers(1, 4),
    groups=st.integers(1, 3),
    room=st.integers(0, 24),
    stale=st.sampled_from(["wait", "drop", "mask"]),
    incomplete_groups=st.sampled_from(["train", "drop"]),
    dynamic_sampling=st.booleans(),
)
def test_no_sequence_of_ends_and_drops_stalls_the_gate_or_loses_an_episode(
    seed: int,
    eta: int,
    group_size: int,
    groups: int,
    room: int,
    stale: str,
    incomplete_groups: str,
    dynamic_sampling: bool,
) -> None:
    flow = PlainFlow(
        batch=group_size * groups,
        group_size=group_size,
        max_staleness=eta,
        max_inflight=group_size + room,
        stale=stale,
        incomplete_groups=incomplete_groups,
        dynamic_sampling=dynamic_sampling,
    )
    books = Books(flow, Random(seed).randrange)
    books.start_all()
    for _ in range(6):
        books.step()
    ledger = books.ledger
    assert ledger.started == flow.num_admitted * group_size
    assert ledger.trained > 0
