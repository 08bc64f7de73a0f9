"""Learning has ended, and the gateway still serves: every session is written when it ends or the server stops."""

import asyncio
from pathlib import Path

from areal_sdk.gateway.sessions.external import Ending
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.telemetry import DropReason
from tests.gateway.conftest import StartGateway, model_dirs, start_gateway  # noqa: F401
from tests.rollout import sample_rewards
from tests.rollout.learning import KEY, learn
from tests.toolbox.gateway_requests import call, control


async def test_sessions_without_a_reward_are_cancelled_and_written_when_the_server_stops(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway) as run:
        await run.chat("open")
        await run.chat()
    assert run.ledger.dropped == {DropReason.CANCELLED: 2}
    assert not run.told, "their callers may still go on"
    await run.chat("open")
    await run.gateway.aclose()
    assert run.fates() == [DropReason.CANCELLED] * 2
    found = {episode.id: episode for episode, _ in run.told}
    assert len(found.pop("alice/open").turns) == 2, "also what was said after the end"
    (alone,) = found.values()
    assert len(alone.turns) == 1
    assert alone.outcome.reward is None
    assert run.ledger.dropped == {DropReason.CANCELLED: 2}


async def test_a_session_that_ends_as_learning_does_is_written_once(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway) as run:
        await run.chat("open")
        live = run.gateway.external.get("alice/open")
        assert live is not None
        leaving = asyncio.create_task(run.source.__aexit__(None, None, None))
        await asyncio.sleep(0)  # it has cancelled the episode, which does not know yet
        run.gateway.external.end(live, Ending.CLIENT)
        await leaving
        await run.gateway.aclose()
        assert run.fates() == [DropReason.CANCELLED]
        assert not run.source._dropped


async def test_an_episode_that_is_being_judged_at_the_end_is_written(
    start_gateway: StartGateway,  # noqa: F811
    tmp_path: Path,
) -> None:
    judge = RewardSpec.of("hangs", sample_rewards.hangs)
    async with RewardPool([judge], log_dir=tmp_path, size=1) as rewards:
        async with learn(start_gateway, reward_wait_s=0.01, rewards=rewards) as run:
            await run.chat()
            async with asyncio.timeout(20):
                while rewards._pool._free.qsize():  # noqa: ASYNC110 - it is being judged
                    await asyncio.sleep(0.005)
        assert run.fates() == [DropReason.CANCELLED]


async def test_sessions_that_open_after_the_end_are_kept_and_counted_nowhere(
    start_gateway: StartGateway,  # noqa: F811
) -> None:
    async with learn(start_gateway) as run:
        _, opened = await control(run.gateway, "POST", "/control/sessions", {"split": "eval"})
        assert (await call(run.gateway, key=opened["sessions"][0]["api_key"]))[0] == 200
    await run.chat("late")
    status, answer, _ = await call(run.gateway, "/v1/reward", {"reward": 1}, key=f"{KEY}/late")
    assert (status, answer["error"]["code"]) == (503, "learning_ended")
    await run.chat()
    assert [split for _, split in run.kept] == ["live"], "nobody waits for a reward of it"
    await run.gateway.aclose()
    assert sorted(split for _, split in run.kept) == ["eval", "live", "live"]
    assert all(len(episode.turns) == 1 for episode, _ in run.kept)
    assert run.ledger.started == 0
    assert not run.told
