"""Rewards that await: one process judges many episodes at once, and what goes wrong is only its own."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import InfrastructureError, RewardError
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.types import Episode, Outcome, Task
from tests.rollout import sample_rewards
from tests.rollout.rewarding import episode

AWAITS = RewardSpec.of("awaits", sample_rewards.awaits)


def asked(**data: Any) -> Episode:
    return replace(episode(), task=Task("t", data))


async def judge_all(pool: RewardPool, *does: str) -> list[Outcome | BaseException]:
    judging = (pool.score(asked(does=what)) for what in does)
    return await asyncio.gather(*judging, return_exceptions=True)


def test_a_reward_that_awaits_is_known_by_its_function() -> None:
    assert AWAITS.awaits
    assert not RewardSpec.of("length", sample_rewards.length).awaits


async def test_many_episodes_are_judged_at_once_in_one_process(tmp_path: Path) -> None:
    specs = [RewardSpec.of("together", sample_rewards.meets_in_one_process)]
    async with RewardPool(specs, log_dir=tmp_path, size=1) as pool:
        found = await asyncio.gather(*(pool.score(asked(together=40)) for _ in range(40)))
    assert [outcome.reward for outcome in found] == [1.0] * 40


async def test_what_it_raises_is_an_error_of_its_own_episode(tmp_path: Path) -> None:
    async with RewardPool([AWAITS], log_dir=tmp_path, size=1) as pool:
        raised, machine, fine = await judge_all(pool, "raises", "has no machine", "")
        assert isinstance(raised, RewardError)
        assert str(raised).startswith("reward 'awaits': KeyError: 'answer' (sample_rewards.py:")
        assert isinstance(machine, InfrastructureError)
        assert "no machine" in str(machine)
        assert isinstance(fine, Outcome)
        assert fine.reward == 1.0


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("crashes", "reward 'awaits' took its worker down: .*exited with code 3"),
        ("blocks", r"reward 'awaits': no verdict within 3 s.*killed"),
        ("hangs", r"reward 'awaits': no verdict within 3 s: make it faster"),
    ],
)
async def test_neighbours_of_a_bad_judgement_get_their_verdicts(
    tmp_path: Path, does: str, message: str
) -> None:
    async with RewardPool([AWAITS], log_dir=tmp_path, size=1, timeout_s=3.0) as pool:
        bad, *others = await judge_all(pool, does, "", "", "")
        with pytest.raises(RewardError, match=message):
            raise bad if isinstance(bad, BaseException) else AssertionError(bad)
        assert [getattr(other, "reward", other) for other in others] == [1.0] * 3
        assert (await pool.score(asked())).reward == 1.0


async def test_a_judgement_that_is_withdrawn_holds_up_nothing(tmp_path: Path) -> None:
    async with RewardPool([AWAITS], log_dir=tmp_path, size=1, timeout_s=3600.0) as pool:
        hanging = asyncio.create_task(pool.score(asked(does="hangs")))
        assert (await pool.score(asked())).reward == 1.0
        hanging.cancel()
        await asyncio.wait({hanging})
        assert (await pool.score(asked())).reward == 1.0
