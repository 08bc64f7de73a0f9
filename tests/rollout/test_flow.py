"""Dispatcher, gate, buffer and ledger together, under everything that can happen to an episode."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from areal_sdk.errors import ConfigError
from areal_sdk.flow import Drop, GroupFlow, Stop
from areal_sdk.rollout.groups import FinishedGroup, ScoredEpisode, triage
from areal_sdk.rollout.metrics import RecentEpisodes
from areal_sdk.rollout.tasks import EpisodeRequest, IssuedTask
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.types import Episode, Outcome, Task
from tests.rollout.simulation import Run, simulate, turn


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    eta=st.integers(0, 3),
    group_size=st.integers(1, 4),
    groups=st.integers(1, 3),
    room=st.integers(0, 24),
    failure_rate=st.floats(0, 0.5),
    truncated_rate=st.floats(0, 0.5),
    straggler_rate=st.floats(0, 0.3),
    num_rewards=st.integers(1, 3),
    train_s=st.floats(0, 20),
    stale=st.sampled_from(["wait", "drop", "mask"]),
    truncated=st.sampled_from(["score", "mask", "drop"]),
    drop_incomplete=st.booleans(),
    dynamic_sampling=st.booleans(),
)
@example(
    seed=5613,
    eta=0,
    group_size=3,
    groups=2,
    room=0,
    failure_rate=0.4844959559760289,
    truncated_rate=0.4844959559760289,
    straggler_rate=0.24533206346981162,
    num_rewards=1,
    train_s=0.0,
    stale="wait",
    truncated="drop",
    drop_incomplete=True,
    dynamic_sampling=True,
)  # few groups are whole: a batch takes more than an hour of virtual time
def test_no_failures_stall_the_gate_and_no_sample_over_eta_is_trained(
    seed: int,
    eta: int,
    group_size: int,
    groups: int,
    room: int,
    failure_rate: float,
    truncated_rate: float,
    straggler_rate: float,
    num_rewards: int,
    train_s: float,
    stale: Any,
    truncated: Any,
    drop_incomplete: bool,
    dynamic_sampling: bool,
) -> None:
    run = Run(
        batch=group_size * groups,
        group_size=group_size,
        eta=eta,
        max_inflight=group_size + room,
        stale=stale,
        wait_s=5.0,
        dynamic_sampling=dynamic_sampling,
        max_lost_in_a_row=10_000,
        runner={
            "seed": seed,
            "failure_rate": failure_rate,
            "truncated_rate": truncated_rate,
            "straggler_rate": straggler_rate,
            "num_rewards": num_rewards,
        },
        incomplete_groups="drop" if drop_incomplete else "train",
        dispatcher={"truncated": truncated},
    )
    simulate(run.steps(8, train_s=train_s))
    assert [len(batch.finished) for batch in run.batches] == [groups] * 8
    for batch in run.batches:
        for group in batch.groups:
            versions = [v for t in group.trajectories for v in t.versions if v >= 0]
            assert all(batch.version - v <= eta for v in versions)
            assert group.num_episodes >= min(2, group_size)
    books = run.ledger
    assert books.trained == sum(batch.num_episodes for batch in run.batches)
    assert books.buffered == books.kept - books.trained


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    stopped_at=st.floats(0.001, 60),
    failure_rate=st.floats(0, 0.6),
    straggler_rate=st.floats(0, 0.3),
    stale=st.sampled_from(["wait", "drop", "mask"]),
    drop_incomplete=st.booleans(),
    dynamic_sampling=st.booleans(),
)
def test_the_books_balance_whenever_the_run_is_stopped(
    seed: int,
    stopped_at: float,
    failure_rate: float,
    straggler_rate: float,
    stale: Any,
    drop_incomplete: bool,
    dynamic_sampling: bool,
) -> None:
    run = Run(
        batch=8,
        group_size=4,
        eta=1,
        max_inflight=24,
        stale=stale,
        dynamic_sampling=dynamic_sampling,
        max_lost_in_a_row=10_000,
        runner={"seed": seed, "failure_rate": failure_rate, "straggler_rate": straggler_rate},
        incomplete_groups="drop" if drop_incomplete else "train",
    )

    async def scenario() -> None:
        async with asyncio.timeout(stopped_at):
            await run.steps(1000)

    with pytest.raises(TimeoutError):
        simulate(scenario())
    books = run.ledger
    assert books.running == run.runner.num_running == 0
    assert books.started == books.buffered + books.trained + sum(books.dropped.values())
    restarted = Ledger.restore(books.snapshot())
    assert restarted.started == restarted.trained + sum(restarted.dropped.values())


def test_the_gate_alone_lets_stragglers_through_and_the_check_at_the_cut_does_not() -> None:
    """The test shows why there are two mechanisms."""

    class GateOnly(GroupFlow[Any, Any, Any]):
        def shed(self) -> list[Drop[Any, Any]]:
            return []

        def set_version(self, version: int) -> list[Stop[Any]]:
            super().set_version(version)
            return []

    def worst(checked: bool) -> float:
        slow = {"straggler_rate": 0.05, "straggler_s": 40.0, "seed": 3}
        run = Run(eta=2, stale="drop", runner=slow, max_inflight=64)
        if not checked:
            run.buffer.flow.__class__ = GateOnly
        simulate(run.steps(60))
        assert (DropReason.STALE in run.ledger.dropped) == checked
        return max(batch.metrics["staleness_max"] for batch in run.batches)

    assert worst(checked=False) > 5
    assert worst(checked=True) <= 2


def test_waiting_for_stragglers_drops_fewer_than_not_waiting() -> None:
    slow = {"straggler_rate": 0.1, "straggler_s": 6.0, "seed": 1}
    dropped: Counter[str] = Counter()
    for policy in ("wait", "drop"):
        run = Run(eta=1, stale=policy, wait_s=30.0, runner=slow)
        simulate(run.steps(60))
        dropped[policy] = run.ledger.dropped.get(DropReason.STALE, 0)
    assert dropped["wait"] < dropped["drop"]
    assert dropped["wait"] == 0


def test_the_trainer_holds_for_a_straggler_no_longer_than_wait_s() -> None:
    slow = {"straggler_rate": 0.3, "straggler_s": 1000.0, "seed": 5}
    run = Run(eta=1, stale="wait", wait_s=7.0, runner=slow)
    simulate(run.steps(12))
    held = [batch.metrics["held_s"] for batch in run.batches]
    assert max(held) == pytest.approx(7.0)


def test_a_running_episode_that_no_step_can_train_is_stopped() -> None:
    async def scenario() -> None:
        slow = {"straggler_rate": 0.2, "straggler_s": 300.0, "seed": 5}
        run = Run(eta=1, stale="drop", runner=slow)
        async with run.dispatcher:
            for _ in range(30):
                await run.step()
            assert run.runner.num_cancelled > 0
            assert run.ledger.dropped[DropReason.STALE] >= run.runner.num_cancelled
            assert DropReason.CANCELLED not in run.ledger.dropped
            # `ended_duration_s` is what the durations of trained episodes are held against.
            ended = run.ledger.started - run.ledger.running
            assert len(run.buffer.recent._durations) == ended

    simulate(scenario())


def test_the_trainer_does_not_wait_for_a_group_that_has_no_token_yet() -> None:
    async def scenario() -> float:
        run = Run(eta=1, batch=2, group_size=1, max_inflight=4, wait_s=500.0)
        queued = asyncio.Event()
        play = run.runner.run

        async def play_or_queue(request: EpisodeRequest) -> Episode:
            if request.id == "t0.0.0":
                await queued.wait()  # in the engine's queue: admitted, nothing sampled
            return await play(request)

        run.runner.run = play_or_queue  # type: ignore[method-assign]
        async with run.dispatcher:
            for _ in range(6):
                await run.step()
        return sum(batch.metrics["held_s"] for batch in run.batches)

    assert simulate(scenario()) < 30


def test_a_group_left_with_only_masked_members_is_not_trained() -> None:
    run = Run(
        eta=1,
        group_size=4,
        batch=8,
        max_inflight=24,
        stale="drop",
        runner={"truncated_rate": 0.6, "straggler_rate": 0.3, "straggler_s": 6.0},
        dispatcher={"truncated": "mask"},
    )
    simulate(run.steps(40))
    assert run.ledger.dropped[DropReason.STALE] > 0
    assert all(
        group.oldest_version is not None for batch in run.batches for group in batch.finished
    )


def test_masking_trains_the_fresh_tokens_of_a_stale_episode() -> None:
    slow = {"straggler_rate": 0.3, "straggler_s": 5.0, "seed": 2}
    run = Run(eta=1, stale="mask", runner=slow)
    simulate(run.steps(40))
    masked = [
        t
        for batch in run.batches
        for group in batch.groups
        for t in group.trajectories
        if 0 < t.num_trained < len(t.tokens) - 3
    ]
    assert masked
    for trajectory in masked:
        for index, train in enumerate(trajectory.loss_mask):
            assert train or trajectory.logprobs[index] == 0.0
            assert train or trajectory.versions[index] == -1


def test_short_groups_do_not_widen_the_gate() -> None:
    """Failed siblings give their episode up, but their group keeps its slots until it is trained."""
    run = Run(batch=8, group_size=4, eta=0, max_inflight=64, runner={"failure_rate": 0.3})
    simulate(run.steps(50))
    assert run.runner.max_running <= 8


def test_training_frees_slots_only_by_raising_the_version() -> None:
    async def scenario() -> None:
        run = Run(eta=0, batch=16, group_size=4, num_tasks=50, runner={"failure_rate": 0.25})
        async with run.dispatcher:
            batch = await run.buffer.cut_batch(version=0)
            assert batch.num_episodes <= 12, "a group's worth of siblings failed"
            started = run.ledger.started
            run.buffer.mark_trained(batch)
            await asyncio.sleep(100)
            assert run.ledger.started == started
            run.dispatcher.set_version(1)
            await asyncio.sleep(0.001)
            assert run.ledger.started == started + 16

    simulate(scenario())


def test_a_version_raised_without_a_batch_does_not_widen_the_gate() -> None:
    async def scenario() -> None:
        run = Run(eta=1, batch=4, num_tasks=50, max_inflight=100)
        async with run.dispatcher:
            run.dispatcher.set_version(7)
            await asyncio.sleep(0.001)
            assert run.ledger.running == 8

    simulate(scenario())


def test_a_resumed_run_starts_with_the_capacity_of_its_version() -> None:
    run = Run(version=50, eta=1, batch=4)
    assert run.buffer.num_slots_held == 200

    async def scenario() -> None:
        async with run.dispatcher:
            await asyncio.sleep(1000)
        assert run.ledger.started == 8

    simulate(scenario())


def test_cancelling_books_what_runs_and_keeps_what_is_finished() -> None:
    async def scenario() -> Ledger:
        run = Run(batch=8, eta=1, max_inflight=16)
        async with run.dispatcher:
            await asyncio.sleep(2.0)
        return run.ledger

    books = simulate(scenario())
    assert books.running == 0
    assert books.dropped[DropReason.CANCELLED] > 0
    assert books.started == books.buffered + sum(books.dropped.values())


def test_each_sibling_has_its_own_episode_id_and_a_stable_one() -> None:
    run = Run(num_tasks=3, epochs=2, batch=4, group_size=2)
    seen: list[str] = []
    run.dispatcher._on_episode = lambda episode, verdict: seen.append(episode.id)
    simulate(run.steps(3))
    assert sorted(seen) == sorted(
        f"t{task}.{epoch}.{sibling}" for task in range(3) for epoch in (0, 1) for sibling in (0, 1)
    )


def test_one_failed_sibling_cancels_the_others_when_incomplete_groups_are_dropped() -> None:
    run = Run(
        group_size=4,
        batch=4,
        runner={"failure_rate": 0.3, "straggler_rate": 0.3},
        incomplete_groups="drop",
    )
    simulate(run.steps(6))
    assert all(batch.num_episodes == 4 for batch in run.batches)
    assert run.ledger.dropped[DropReason.GROUP_INCOMPLETE] > 0


def test_the_run_hears_that_failures_escape_the_reward() -> None:
    run = Run(runner={"failure_rate": 0.5, "seed": 4}, batch=16, group_size=4, max_inflight=64)
    simulate(run.steps(20))
    notices = [notice for batch in run.batches for notice in batch.notices]
    assert len([n for n in notices if "rollout.on_agent_error" in n]) == 1


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        (DropReason.ERROR_AGENT, "rollout.on_agent_error"),
        (DropReason.ERROR_REWARD, "a low number"),
        (DropReason.ERROR_ENVIRONMENT, "a low reward"),
        (DropReason.ERROR_TIMEOUT, "rollout.max_turns"),
        (DropReason.ABSTAINED, "score them"),
    ],
)
def test_whatever_lets_failures_escape_the_reward_is_said_once(
    reason: DropReason, cure: str
) -> None:
    """A judge that raises where it finds no answer: the model never learns to give one."""
    recent = RecentEpisodes()
    for _ in range(61):
        recent.kept(1.0, truncated=False)
    for _ in range(3):
        recent.rejected(reason, 1.0)
    assert recent.notices() == ()
    recent.rejected(reason, 1.0)
    (notice,) = recent.notices()
    assert notice.startswith("6% of the latest episodes")
    assert cure in notice
    assert recent.notices() == ()


@pytest.mark.parametrize(
    ("rewards", "num_differing", "cure"),
    [
        ((0.0, 0.0), 3, "imitate demonstrations first"),
        ((1.0, 1.0), 3, "take harder tasks"),
        ((0.0, 0.0), 4, None),
        ((1.0,), 0, None),
    ],
    ids=["nobody succeeds", "everybody does", "enough differ", "no siblings"],
)
def test_a_run_whose_first_groups_all_earn_the_same_hears_what_to_try(
    rewards: tuple[float, ...], num_differing: int, cure: str | None
) -> None:
    def group(number: int) -> FinishedGroup:
        given = (0.0, 1.0) if number < num_differing else rewards
        members = []
        for sibling, reward in enumerate(given):
            episode = Episode("e", Task("t"), (turn(0),), Outcome.scored(reward), sibling=sibling)
            scored = triage(episode)
            assert isinstance(scored, ScoredEpisode)
            members.append(scored)
        return FinishedGroup("g", IssuedTask(Task("t"), epoch=0, position=0), tuple(members))

    recent = RecentEpisodes()
    recent.grouped([group(number) for number in range(31)])
    assert recent.notices() == ()
    recent.grouped([group(number) for number in range(31, 40)])
    notices = recent.notices()
    if cure is None:
        assert notices == ()
        return
    (notice,) = notices
    assert notice.startswith(f"{num_differing} of the first 32 groups have rewards that differ")
    assert cure in notice
    assert recent.notices() == ()


def test_the_run_hears_that_most_episodes_end_at_a_limit() -> None:
    recent = RecentEpisodes()
    for number in range(64):
        recent.kept(1.0, truncated=number < 32)
    assert recent.notices() == ()
    recent.kept(1.0, truncated=True)
    (notice,) = recent.notices()
    assert notice.startswith("51% of the latest episodes ran into a limit")
    assert "rollout.max_turns" in notice


def test_the_run_hears_that_episodes_grow_into_a_limit() -> None:
    """The notice comes before half of the latest 512 episodes ran into the limit."""
    recent = RecentEpisodes()
    for _ in range(400):
        recent.kept(1.0, truncated=False, num_sampled=20)
    assert recent.notices() == ()
    for number in range(64):
        recent.kept(1.0, truncated=number % 3 == 0, num_sampled=100)
    (notice,) = recent.notices()
    assert notice.startswith(
        "episodes grew from 20 to 100 sampled tokens, and 34% of them run into a limit (0% before): "
        "lower trainer.trust_region"
    )
    assert "rollout.max_new_tokens" in notice
    for _ in range(512):
        recent.kept(1.0, truncated=True, num_sampled=200)
    assert recent.notices() == ()


def test_the_run_hears_that_tools_are_never_called() -> None:
    recent = RecentEpisodes()
    for _ in range(63):
        recent.kept(1.0, truncated=False, called_tools=False)
    for _ in range(9):
        recent.kept(1.0, truncated=False)  # without tools
    assert recent.notices() == ()
    recent.kept(1.0, truncated=False, called_tools=False)
    assert recent.notices() == (
        "tools were offered in 64 episodes and never called: warm up with `sft`, or show an example in "
        "the prompt",
    )
    assert recent.notices() == ()
    once = RecentEpisodes()
    for number in range(640):
        once.kept(1.0, truncated=False, called_tools=number == 0)
    assert once.notices() == ()


def test_the_run_hears_that_long_episodes_are_dropped_and_how_to_stop_it() -> None:
    slow = {"straggler_rate": 0.3, "straggler_s": 30.0}
    run = Run(eta=1, stale="drop", runner=slow, batch=8, group_size=2, max_inflight=32)
    simulate(run.steps(60))
    notices = [notice for batch in run.batches for notice in batch.notices]
    assert [n for n in notices if "rollout.wait_s" in n]
    last = run.batches[-1].metrics
    assert last["stale_share_longest_quarter"] > last["stale_share_shortest_quarter"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 5, "group_size": 2}, "batch = 5 is not a multiple of group_size = 2"),
        ({"group_size": 4, "max_inflight": 3}, "max_inflight = 3 cannot hold one group of 4"),
        ({"in_order": True, "eta": 1}, "needs max_staleness = 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Run(**settings)
