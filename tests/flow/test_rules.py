"""Each rule of the flow, with numbers that one can check by hand: 4 episodes a step in groups of 2."""

from typing import Any

import pytest

from areal_sdk.flow import Drop
from areal_sdk.telemetry.ledger import DropReason
from tests.flow.plain import PlainFlow, PlainGroup, PlainMember


def told(drops: list[Drop[PlainMember, PlainGroup]]) -> list[tuple[str, list[int], int | None]]:
    """Reason, siblings and the group that was given up, of each drop."""
    return [
        (
            drop.reason.value,
            [m.sibling for m in drop.members],
            drop.given_up.order if drop.given_up else None,
        )
        for drop in drops
    ]


# --- the gate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("eta", "groups"), [(0, 2), (1, 4), (3, 8)])
def test_one_batch_more_than_eta_may_be_in_the_pipeline(eta: int, groups: int) -> None:
    assert len(PlainFlow(max_staleness=eta).fill()) == groups


def test_no_more_episodes_run_than_max_inflight() -> None:
    flow = PlainFlow(max_staleness=9, max_inflight=7)
    assert len(flow.fill()) == 3
    assert flow.num_running == 6


def test_a_trained_group_keeps_its_slots_until_the_version_rises() -> None:
    flow = PlainFlow(max_staleness=0)
    for _ in range(2):
        flow.finish(0)
    flow.begin_cut(0)
    assert len(flow.cut()) == 2
    assert not flow.has_room()
    flow.set_version(1)
    assert len(flow.fill()) == 2


def test_a_short_batch_does_not_widen_the_gate() -> None:
    flow = PlainFlow(max_staleness=0)
    flow.set_version(5)  # five versions, and nothing was cut
    assert flow.num_slots_held == 20
    assert len(flow.fill()) == 2


def test_a_failed_sibling_frees_no_slot_of_its_group() -> None:
    flow = PlainFlow(max_staleness=0)
    first, _ = flow.fill()
    flow.end(first)
    assert flow.num_running == 3
    assert not flow.has_room()


def test_a_dropped_group_frees_all_its_slots() -> None:
    flow = PlainFlow(max_staleness=0)
    first, _ = flow.fill()
    flow.end(first)
    flow.end(first, 0)
    assert flow.resolve(first) is DropReason.GROUP_INCOMPLETE
    assert len(flow.fill()) == 1


# --- which groups are complete ------------------------------------------------------------------


def test_two_valid_siblings_of_a_larger_group_suffice() -> None:
    flow = PlainFlow(group_size=4)
    group = flow.start()
    for versions in ((), (0,), (), (0,)):
        flow.end(group, *versions)
    assert flow.resolve(group) is None
    assert [member.sibling for member in group.members] == [1, 3]


def test_a_group_with_a_failure_is_dropped_where_whole_groups_are_asked_for() -> None:
    flow = PlainFlow(group_size=4, incomplete_groups="drop")
    group = flow.start()
    for versions in ((0,), (0,), (0,), ()):
        flow.end(group, *versions)
    assert flow.resolve(group) is DropReason.GROUP_INCOMPLETE


def test_the_only_episode_of_a_group_of_one_suffices() -> None:
    flow = PlainFlow(group_size=1)
    group = flow.start()
    flow.end(group, 0)
    assert flow.resolve(group) is None


def test_a_group_that_was_given_up_is_dropped_for_that_reason() -> None:
    flow = PlainFlow()
    group = flow.start()
    flow.end(group, 0)
    group.give_up = DropReason.CANCELLED
    assert flow.resolve(group) is DropReason.CANCELLED
    assert flow.num_running == 0


def test_a_group_without_a_trained_token_is_dropped() -> None:
    flow = PlainFlow()
    group = flow.start()
    for sibling in range(2):
        flow.accept(group, PlainMember(group.order, sibling, ()))
    assert flow.resolve(group) is DropReason.TRUNCATED


# --- what a step takes ----------------------------------------------------------------------------


def test_a_step_takes_the_oldest_groups_in_the_order_of_admission() -> None:
    flow = PlainFlow(max_staleness=5)
    for version in (2, 1, 0):
        flow.finish(version)
    flow.begin_cut(3)
    assert flow.shed() == []
    assert [group.order for group in flow.cut()] == [1, 2]
    assert flow.waiting == [0]


def test_groups_of_one_age_are_taken_in_the_order_of_admission() -> None:
    flow = PlainFlow()
    late, early = flow.start(), flow.start()
    third = flow.start()
    for group in (third, early, late):
        flow.end(group, 0)
        flow.end(group, 0)
        flow.resolve(group)
    flow.begin_cut(0)
    assert [group.order for group in flow.cut()] == [0, 1]


def test_a_step_that_has_too_few_groups_has_no_time_to_cut() -> None:
    flow = PlainFlow()
    flow.finish(0)
    flow.begin_cut(0)
    assert flow.cut_time(7.0) is None
    flow.finish(0)
    assert flow.cut_time(8.0) == 8.0
    assert flow.enough_at == 8.0


def test_when_no_group_is_left_to_come_a_step_takes_what_there_is() -> None:
    flow = PlainFlow()
    flow.finish(0)
    running = flow.start()
    flow.is_exhausted = True
    flow.begin_cut(0)
    assert flow.cut_time(0.0) is None
    flow.end(running)
    flow.end(running)
    flow.resolve(running)
    assert flow.cut_time(1.0) == 1.0
    assert [group.order for group in flow.cut()] == [0]


def held(**rollout: Any) -> PlainFlow:
    """The step from version 1 could begin, while a group of version 0 runs: with eta = 1 its last chance."""
    flow = PlainFlow(wait_s=30.0, **rollout)
    running = flow.start()
    running.ages[0] = 0
    flow.set_version(1)
    for _ in range(2):
        flow.finish(1)
    flow.begin_cut(1)
    assert flow.shed() == []
    return flow


def test_a_step_waits_for_a_group_that_no_later_step_can_train() -> None:
    flow = held()
    assert flow.cut_time(10.0) == 40.0
    assert flow.cut_time(39.0) == 40.0
    assert flow.cut_time(40.0) == 40.0
    assert flow.cut_time(41.0) == 41.0


def test_a_step_that_drops_what_is_too_old_waits_for_nobody() -> None:
    assert held(stale="drop").cut_time(10.0) == 10.0
    assert held(stale="mask").cut_time(10.0) == 10.0


def test_a_step_waits_for_no_group_that_a_later_step_may_train() -> None:
    assert held(max_staleness=2).cut_time(10.0) == 10.0


def test_a_step_that_is_full_of_groups_as_old_waits_for_nobody() -> None:
    flow = PlainFlow()
    flow.start().ages[0] = 0
    flow.finish(0)
    flow.finish(0)
    flow.begin_cut(1)
    flow.shed()
    assert flow.cut_time(10.0) == 10.0


# --- what is dropped as too old ---------------------------------------------------------------------


def test_members_that_are_too_old_leave_and_their_group_goes_with_too_few() -> None:
    flow = PlainFlow(batch=6, group_size=3, max_inflight=100)
    kept, lost = flow.start(), flow.start()
    for versions in ((0,), (1,), (1,)):
        flow.end(kept, *versions)
    for versions in ((0,), (0,), (1,)):
        flow.end(lost, *versions)
    assert flow.resolve(kept) is None
    assert flow.resolve(lost) is None
    flow.begin_cut(2)
    assert told(flow.shed()) == [
        ("stale", [0], None),
        ("stale", [0, 1], None),
        ("group_incomplete", [2], 1),
    ]
    assert [member.sibling for member in kept.members] == [1, 2]
    assert flow.waiting == [0]
    assert flow.num_slots_held == 3


def test_masking_keeps_the_tokens_that_are_young_enough() -> None:
    flow = PlainFlow(stale="mask")
    group = flow.start()
    flow.end(group, 0, 1, 2)
    flow.end(group, 0)
    flow.resolve(group)
    whole = flow.start()
    flow.end(whole, 0, 1)
    flow.end(whole, 0, 2)
    flow.resolve(whole)
    flow.begin_cut(2)
    assert told(flow.shed()) == [("stale", [1], None), ("group_incomplete", [0], 0)]
    assert [member.versions for member in whole.members] == [(1,), (2,)]


def test_running_siblings_that_no_step_can_train_are_stopped() -> None:
    flow = PlainFlow()
    old, young = flow.start(), flow.start()
    old.ages = {0: 0, 1: 1}
    young.ages = {0: 1, 1: None}
    assert flow.set_version(1) == []
    (stop,) = flow.set_version(2)
    assert (stop.group, stop.sibling, stop.reason) == (old, 0, DropReason.STALE)


def test_masking_stops_nobody() -> None:
    flow = PlainFlow(stale="mask")
    flow.start().ages = {0: 0, 1: 0}
    assert flow.set_version(9) == []


def test_what_was_taken_back_is_neither_kept_nor_masked_and_its_siblings_stop() -> None:
    flow = PlainFlow(max_staleness=5, stale="mask")
    flow.finish(2)
    running = flow.start()
    running.ages = {0: 2, 1: 3}
    flow.take_back(valid_from=3)
    flow.begin_cut(3)
    assert told(flow.shed()) == [("rolled_back", [0, 1], None), ("group_incomplete", [], 0)]
    (stop,) = flow.set_version(3)
    assert (stop.sibling, stop.reason) == (0, DropReason.ROLLED_BACK)


def test_surplus_of_live_callers_is_dropped_oldest_first() -> None:
    flow = PlainFlow()  # two groups a step, and two more that the next step may take
    for version in (1, 0, 1, 1, 0, 1):
        flow.finish(version)
    assert told(flow.shed_surplus()) == [("stale", [0, 1], 1), ("stale", [0, 1], 4)]
    assert flow.waiting == [0, 2, 3, 5]
    assert flow.shed_surplus() == []


# --- dynamic sampling ---------------------------------------------------------------------------------


def test_idle_groups_are_trained_unless_dynamic_sampling_is_on() -> None:
    flow = PlainFlow()
    flow.finish(0, is_idle=True)
    flow.begin_cut(0)
    assert flow.shed() == []


def test_idle_groups_give_their_slots_to_others_for_three_batches() -> None:
    flow = PlainFlow(dynamic_sampling=True, max_staleness=0)
    flow.begin_cut(0)
    for number in range(6):
        flow.finish(0, is_idle=True)
        assert told(flow.shed()) == [("zero_variance", [0, 1], number)]
    assert flow.num_slots_held == 0
    flow.finish(0, is_idle=True)
    flow.finish(0)
    assert flow.shed() == []
    assert [group.order for group in flow.cut()] == [6, 7]


def test_each_batch_has_refills_of_its_own() -> None:
    flow = PlainFlow(dynamic_sampling=True, max_staleness=0)
    for version in (0, 1):
        flow.set_version(version)
        flow.begin_cut(version)
        for _ in range(7):
            flow.finish(version, is_idle=True)
        assert len(flow.shed()) == 6
        flow.finish(version)
        assert flow.cut_time(0.0) == 0.0
        flow.cut()


def test_in_order_idle_groups_are_dropped_once_all_groups_have_ended() -> None:
    flow = PlainFlow(dynamic_sampling=True, max_staleness=0, in_order=True)
    running = flow.start()
    flow.begin_cut(0)
    flow.finish(0, is_idle=True)
    assert flow.shed() == []
    flow.end(running, 0)
    flow.end(running, 0)
    flow.resolve(running)
    assert told(flow.shed()) == [("zero_variance", [0, 1], 1)]


def test_the_last_groups_are_trained_though_they_are_idle() -> None:
    flow = PlainFlow(dynamic_sampling=True)
    flow.finish(0, is_idle=True)
    flow.is_exhausted = True
    flow.begin_cut(0)
    assert flow.shed() == []
    assert len(flow.cut()) == 1
