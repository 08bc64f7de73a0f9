"""Callers' sessions become episodes: the books balance whatever they do."""

import asyncio
import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest

from areal_sdk.errors import WaitTimeoutError
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.external import Ending
from areal_sdk.rollout.callers import CallerTasks
from areal_sdk.rollout.groups import Rejection, ScoredEpisode, TriagedEpisode
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.telemetry import DropReason
from areal_sdk.testing import Fault, Reply
from areal_sdk.types import Episode, WeightUpdate
from tests.gateway.conftest import StartGateway, model_dirs, start_gateway  # noqa: F401
from tests.rollout import sample_rewards
from tests.rollout.learning import KEY, learn
from tests.toolbox.gateway_requests import call, control


async def test_rewarded_calls_fill_a_batch(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway, batch=2) as run:
        reply = await run.chat()
        assert run.ledger.running == 1
        await run.reward(1.0, turn=reply)
        await run.chat("named")
        await run.chat("named")
        await run.reward(0.5, "named")
        batch = await run.buffer.cut_batch(version=0)
        run.buffer.mark_trained(batch)
        assert [g.task_id for g in batch.groups] == ["alice", "alice"]
        assert [{t.reward for t in g.trajectories} for g in batch.groups] == [{1.0}, {0.5}]
        assert {t.episode_id for t in batch.groups[1].trajectories} == {"alice/named"}
        assert run.ledger.trained == 2


async def test_what_nobody_rewards_is_not_a_zero(start_gateway: StartGateway) -> None:  # noqa: F811
    async with learn(start_gateway, reward_wait_s=0.01) as run:
        await run.chat()
        async with asyncio.timeout(20):
            while not run.told:  # noqa: ASYNC110 - the reward's deadline has no event
                await asyncio.sleep(0.005)
        assert run.fates() == [DropReason.ABSTAINED]
        assert run.ledger.dropped == {DropReason.ABSTAINED: 1}


async def test_a_fault_of_ours_is_no_bad_episode(start_gateway: StartGateway) -> None:  # noqa: F811
    async with learn(start_gateway, [Reply(fault=Fault.RAISE), "ok"]) as run:
        status, _, _ = await call(run.gateway, key=f"{KEY}/e")
        assert status == 503
        await run.chat("e", max_tokens=9)
        await run.reward(0.0, "e")
        await run.settled()
        assert run.fates() == [DropReason.ERROR_INFRASTRUCTURE]


async def test_a_bug_after_an_episode_reaches_who_waits_for_a_batch(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    def broken(episode: Episode | TriagedEpisode, verdict: ScoredEpisode | Rejection) -> None:
        raise OSError("the disk is full")

    async with learn(start_gateway, on_episode=broken) as run:
        await run.reward(1.0, turn=await run.chat())
        with pytest.raises(OSError, match="the disk is full"):
            await run.buffer.cut_batch(version=0, timeout_s=20.0)


async def test_rewards_of_turns_add_up(start_gateway: StartGateway) -> None:  # noqa: F811
    async with learn(start_gateway) as run:
        for reward in (0.25, 0.5):
            await run.reward(reward, "e", turn=await run.chat("e"))
        await call(run.gateway, "/v1/end", {}, key=f"{KEY}/e")
        await run.settled()
        ((episode, verdict),) = run.told
        assert isinstance(verdict, ScoredEpisode)
        assert (episode.reward, episode.outcome.turn_rewards) == (0.75, (0.25, 0.5))


async def test_a_caller_slower_than_the_training_goes_on_untrained(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway, max_staleness=1) as run:
        await run.chat("slow")
        run.buffer.set_version(2)
        await run.settled()
        assert run.ledger.dropped == {DropReason.STALE: 1}
        await run.chat("slow")
        await run.reward(1.0, "slow")
        await run.settled()
        assert run.fates() == [DropReason.STALE]
        assert run.ledger.started == 1


async def test_what_is_too_old_before_it_is_judged_is_told_once_and_forgotten(
    start_gateway: StartGateway,  # noqa: F811
    tmp_path: Path,
) -> None:
    judge = RewardSpec.of("hangs", sample_rewards.hangs)
    async with (
        RewardPool([judge], log_dir=tmp_path, size=1) as rewards,
        learn(start_gateway, reward_wait_s=0.01, rewards=rewards) as run,
    ):
        await run.chat()
        async with asyncio.timeout(20):
            while rewards._pool._free.qsize():  # noqa: ASYNC110 - it is being judged
                await asyncio.sleep(0.005)
        run.buffer.set_version(2)
        await run.settled()
        assert run.fates() == [DropReason.STALE]
        assert run.ledger.dropped == {DropReason.STALE: 1}
        assert not run.source._dropped


async def test_a_name_that_is_used_again_while_its_first_episode_is_judged_is_another_episode(
    start_gateway: StartGateway,  # noqa: F811
    tmp_path: Path,
) -> None:
    judge = RewardSpec.of("in_a_second", sample_rewards.in_a_second)
    async with (
        RewardPool([judge], log_dir=tmp_path, size=1) as rewards,
        learn(start_gateway, reward_wait_s=0.01, rewards=rewards) as run,
    ):
        async with asyncio.timeout(60):
            for number in range(2):
                opening = {"id": "task-7", "user": "alice"}
                _, opened = await control(run.gateway, "POST", "/control/sessions", opening)
                assert (await call(run.gateway, key=opened["sessions"][0]["api_key"]))[0] == 200
                while run.ledger.buffered < number:  # noqa: ASYNC110 - the judge has a process
                    await asyncio.sleep(0.005)
                await control(run.gateway, "DELETE", "/control/sessions/task-7")
                await asyncio.sleep(0.05)  # the time to reward it by hand is over
            while run.ledger.buffered < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert run.ledger.running == 0


async def test_what_can_never_be_trained_in_time_is_dropped_at_once(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway, batch=2, max_staleness=1) as run:
        for _ in range(7):
            await run.reward(1.0, turn=await run.chat())
        await run.settled()
        assert run.ledger.buffered == 4, "two batches, this one and the next"
        assert run.ledger.dropped == {DropReason.STALE: 3}


async def test_a_group_that_was_opened_is_compared(start_gateway: StartGateway) -> None:  # noqa: F811
    async with learn(start_gateway, batch=2, group_size=2) as run:
        opening = {"id": "g", "group_size": 2, "user": "alice"}
        _, opened = await control(run.gateway, "POST", "/control/sessions", opening)
        for reward, address in enumerate(opened["sessions"]):
            assert (await call(run.gateway, key=address["api_key"]))[0] == 200
            posted = {"reward": reward}
            await call(run.gateway, "/v1/reward", posted, key=address["api_key"])
        batch = await run.buffer.cut_batch(version=0)
        (group,) = batch.groups
        assert [t.reward for t in group.trajectories] == [0.0, 1.0]
        run.buffer.mark_trained(batch)


@pytest.mark.parametrize("ended", [0, 1, 2])
async def test_a_group_that_lost_a_sibling_before_the_run_began_is_callers_alone(
    start_gateway: StartGateway,  # noqa: F811
    ended: int,
) -> None:
    def open_and_end(gateway: Gateway) -> None:
        account = gateway._access._accounts.by_name("alice")
        assert account is not None
        for sibling in range(3):
            gateway.external.open(account, f"g/{sibling}", group="g", group_size=3, sibling=sibling)
        one = gateway.external.get(f"g/{ended}")
        assert one is not None
        gateway.external.end(one, Ending.CLIENT)

    async with learn(start_gateway, batch=3, group_size=3, before=open_and_end) as run:
        await run.settled()
        assert run.ledger.running == 2
        for one in run.gateway.external:
            await one.session.generate([{"role": "user", "content": "Hi"}])
            run.gateway.external.reward(one, 1.0)
        await run.settled()
        assert run.ledger.dropped == {DropReason.GROUP_INCOMPLETE: 2}
        assert run.buffer.num_running == 0


async def test_a_caller_alone_has_nobody_to_be_compared_with(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway, batch=2, group_size=2) as run:
        await run.reward(1.0, turn=await run.chat())
        await run.settled()
        assert run.ledger.dropped == {DropReason.GROUP_INCOMPLETE: 1}


async def test_a_refused_request_teaches_nothing(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway) as run:
        status, _, _ = await call(run.gateway, body={"model": "policy", "messages": []}, key=KEY)
        assert status == 400
        await run.settled()
        assert run.ledger.dropped == {DropReason.ABSTAINED: 1}


@pytest.mark.parametrize("state", [{}, {"next": "1"}, {"first_epoch": 0, "consumed": {}}])
def test_only_its_own_state_is_restored(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="learns from callers"):
        CallerTasks().restore(state)
    source = CallerTasks()
    source.restore({"next": 7})
    assert source.state() == {"next": 7}


@pytest.mark.parametrize("seed", range(6))
async def test_the_books_balance_whatever_callers_do(
    start_gateway: StartGateway,  # noqa: F811
    seed: int,
) -> None:
    """Random callers, rewards, ends, updates and batches: nobody is lost or counted twice."""
    dice, version, group_size = random.Random(seed), 0, 1 + seed % 2
    async with learn(start_gateway, batch=2, max_staleness=1, group_size=group_size) as run:
        live, store = run.gateway.external, run.gateway.sessions
        account = run.gateway._access._accounts.by_name("alice")
        assert account is not None
        names = (f"s{number}" for number in itertools.count())
        for _ in range(300):
            sessions = [one for one in live if not one.is_finished]
            one = dice.choice(sessions) if sessions else None
            match dice.randrange(10):
                case 0 if len(sessions) < 16:
                    group = next(names)
                    for sibling in range(group_size):
                        live.open(
                            account,
                            f"{group}/{sibling}",
                            group=group,
                            group_size=group_size,
                            sibling=sibling,
                        )
                case 1 | 2 | 3 if one and one.ended is None:
                    await one.session.generate([{"role": "user", "content": "Hi"}])
                case 4 | 5 | 6 if one and one.session.turns:
                    live.reward(one, dice.random())
                case 7 if one and one.session.turns:
                    live.reward(one, dice.random(), turn=0)
                case 8 if one and dice.random() < 0.3:
                    live.end(one, dice.choice([Ending.CLIENT, Ending.IDLE]))
                case _ if run.ledger.buffered >= 2:
                    with suppress(WaitTimeoutError):  # too old, some of them
                        batch = await run.buffer.cut_batch(version=version, timeout_s=0.01)
                        run.buffer.mark_trained(batch)
                        version += 1
                        await run.gateway._engine.update_weights(WeightUpdate(version, None))
                        run.buffer.set_version(version)
            await run.settled()
            run.ledger.check()
            running = sum(not one.is_finished for one in live)
            assert run.ledger.running <= running, "the rest were too old, and go on untrained"
            assert len(store) == sum(one.ended is None for one in live)
        assert version > 3
        assert run.ledger.trained > 8


@pytest.mark.parametrize(
    ("by_turn", "verdict", "expected", "total"),
    [
        ((0.25, 0.5), 1.0, (0.25, 1.5), 1.75),
        ((0.25, None), 1.0, (0.25, 1.0), 1.25),
        ((None, 0.5), 0.0, (None, 0.5), 0.5),
        ((None, None), 1.0, (), 1.0),
    ],
)
async def test_a_verdict_on_the_episode_comes_on_top_of_the_rewards_of_its_turns(
    start_gateway: StartGateway,  # noqa: F811
    by_turn: tuple[float | None, ...],
    verdict: float,
    expected: tuple[float | None, ...],
    total: float,
) -> None:
    async with learn(start_gateway) as run:
        for reward in by_turn:
            reply = await run.chat("e")
            if reward is not None:
                await run.reward(reward, "e", turn=reply)
        await run.reward(verdict, "e")
        await run.settled()
        ((episode, kept),) = run.told
        assert isinstance(kept, ScoredEpisode)
        assert (episode.reward, episode.outcome.turn_rewards) == (total, expected)
        assert episode.outcome.success is (verdict == 1.0 if expected else None)
        assert {t.turn_rewards for t in kept.trajectories} == {expected}


async def test_rewards_too_large_to_add_up_are_refused_and_harm_nobody(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway) as run:
        reply = await run.chat("e")
        for reward in (1.7e308, -1.7e308):
            status, answer, _ = await call(
                run.gateway, "/v1/reward", {"reward": reward, "turn": reply}, key=f"{KEY}/e"
            )
            assert status == 400
            assert "reward" in answer["error"]["message"]
        await run.reward(1e99, "e", turn=reply)
        await run.reward(1.0, "e")
        await run.settled()
        assert run.fates() == ["kept"]


async def test_what_a_caller_measures_is_not_trained(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway, batch=1) as run:
        for split in ("eval", "train"):
            opened = {"id": split, "split": split, "user": "alice"}
            status, answer = await control(run.gateway, "POST", "/control/sessions", opened)
            assert status == 201, answer
            live = run.gateway.external.get(split)
            assert live is not None
            await live.session.generate([{"role": "user", "content": "Hi"}])
            path = f"/control/sessions/{split}/reward"
            status, answer = await control(run.gateway, "POST", path, {"reward": 1.0})
            assert status == 200, answer
        await run.settled()
        assert [episode.id for episode, _ in run.told] == ["train"]
        assert [(episode.id, episode.reward, split) for episode, split in run.kept] == [
            ("eval", 1.0, "eval")
        ]
        assert run.ledger.started == run.ledger.buffered == 1
