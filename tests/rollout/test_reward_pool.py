"""Rewards in real worker processes: verdicts, and failures that are never a zero."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_sdk.errors import ConfigError, InfrastructureError, RewardError
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.rollout.judging.verdicts import combine, read_verdict
from areal_sdk.types import Outcome, OutcomeKind, Task
from tests.rollout import sample_rewards
from tests.rollout.rewarding import episode, spec


async def test_every_kind_of_verdict_arrives(tmp_path: Path) -> None:
    names = ["length", "slowly", "per_turn", "whole", "numpy_scalar", "numpy_success", "none"]
    specs = [spec("length", per_word=0.5), *(spec(name) for name in names[1:])]
    expected: list[dict[str, Any]] = [
        {"reward": 1.0},
        {"reward": 0.0},
        {"reward": 0.5, "turn_rewards": (0.5, None)},
        {"reward": 0.25, "success": True, "metrics": {"checks": 3.0}},
        {"reward": 0.5},
        {"success": True, "metrics": {"half ?": 1.0}},
        {"kind": OutcomeKind.ABSTAIN, "reward": None},
    ]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        payload = __import__("pickle").dumps(episode())
        for index, (reward, fields) in enumerate(zip(specs, expected, strict=True)):
            outcome = await pool._ask(index, reward, payload)
            for name, value in fields.items():
                assert getattr(outcome, name) == value, reward.name


async def test_a_bad_reward_is_a_typed_error_and_the_next_one_is_unaffected(tmp_path: Path) -> None:
    bad = {
        "raises": r"reward 'raises': KeyError: 'answer' \(sample_rewards\.py:\d+\)$",
        "raises_half_a_character": r"reward 'raises_half_a_character': ValueError: half \?",
        "nan": r"reward 'nan': ValueError: .* finite",
        "text": r"reward 'text': ValueError: a reward returns a number",
        "crashes": r"reward 'crashes' took its worker down: .*exited with code 3",
        "exits": r"reward 'exits' took its worker down",
        "hangs": r"reward 'hangs': no verdict within 3 s.*killed.*rollout.reward_timeout_s",
    }
    specs = [*(spec(name) for name in bad), spec("length")]
    async with RewardPool(specs, log_dir=tmp_path, timeout_s=3.0) as pool:
        payload = __import__("pickle").dumps(episode())
        for index, (reward, message) in enumerate(zip(specs, bad.values(), strict=False)):
            with pytest.raises(RewardError, match=message) as raised:
                await pool._ask(index, reward, payload)
            assert ("sample_rewards.py" in raised.value.trace) == reward.name.startswith("raises")
            outcome = await pool._ask(len(bad), specs[-1], payload)
            assert outcome.reward == 2.0


async def test_a_fault_of_the_machine_in_a_reward_is_no_fault_of_the_reward(tmp_path: Path) -> None:
    async with RewardPool([spec("has_no_sandbox")], log_dir=tmp_path) as pool:
        with pytest.raises(InfrastructureError, match="'has_no_sandbox': no room for a sandbox"):
            await pool.score(episode())


class ReadableHereOnly:
    """Can be pickled, and not be read again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("only here",)


async def test_task_data_that_cannot_travel_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with RewardPool([spec("length")], log_dir=tmp_path) as pool:
        stays_here = replace(episode(), task=Task("t", {"check": lambda answer: True}))
        with pytest.raises(RewardError, match=r"task 't' cannot be sent .*lambda.*Task\.data"):
            await pool.score(stays_here)
        is_lost = replace(episode(), task=Task("t", {"question": ReadableHereOnly()}))
        with pytest.raises(RewardError, match=r"cannot be read .*'only here'.*Task\.data"):
            await pool.score(is_lost)
        assert (await pool.score(episode())).reward == 2.0
        assert pool._pool.num_replaced == 0


async def withdraw_while_judged(pool: RewardPool, directory: Path) -> None:
    """Cancel a judgement that its worker is at."""
    held = replace(episode(), task=Task("t", {"directory": str(directory)}))
    withdrawn = asyncio.create_task(pool.score(held))
    async with asyncio.timeout(30):
        while not (directory / "judging").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    withdrawn.cancel()
    await asyncio.wait({withdrawn})


@pytest.mark.parametrize("reward", ["when_released", "blocks_until_released"])
async def test_who_withdraws_an_episode_costs_no_worker_and_no_other_verdict(
    tmp_path: Path, reward: str
) -> None:
    specs = [spec("worker_id"), spec(reward)]
    async with RewardPool(specs, log_dir=tmp_path, size=1) as pool:
        before = (await pool.score(episode())).metrics["reward/worker_id"]
        await withdraw_while_judged(pool, tmp_path)
        queued = asyncio.create_task(pool.score(episode()))
        if reward == "blocks_until_released":
            (tmp_path / "release").touch()  # else its deadline would end it
        assert (await queued).metrics["reward/worker_id"] == before
        assert pool._pool.num_replaced == 0


async def test_a_withdrawn_judgement_has_its_deadline_all_the_same(tmp_path: Path) -> None:
    specs = [spec("blocks_until_released")]
    async with RewardPool(specs, log_dir=tmp_path, size=1, timeout_s=3.0) as pool:
        await withdraw_while_judged(pool, tmp_path)
        assert (await pool.score(episode())).reward == 1.0
        assert pool._pool.num_replaced == 1


async def test_closing_does_not_wait_for_withdrawn_judgements(tmp_path: Path) -> None:
    specs = [spec("blocks_until_released")]
    async with asyncio.timeout(60):
        async with RewardPool(specs, log_dir=tmp_path, size=1, timeout_s=3600.0) as pool:
            await withdraw_while_judged(pool, tmp_path)


async def test_several_rewards_are_weighted_and_named(tmp_path: Path) -> None:
    specs = [spec("length", 0.5), spec("whole", 2.0)]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        outcome = await pool.score(episode())
    assert pool.names == ("length", "whole")
    assert outcome.reward == 0.5 * 2 + 2.0 * 0.25
    assert outcome.success is True
    assert outcome.metrics == {"reward/length": 2.0, "reward/whole": 0.25, "whole/checks": 3.0}


async def test_an_option_may_be_a_path(tmp_path: Path) -> None:
    reward = RewardSpec.of("is_there", sample_rewards.is_there, options={"file": tmp_path / "yes"})
    async with RewardPool([reward], log_dir=tmp_path) as pool:
        assert (await pool.score(episode("yes"))).reward == 1.0
        assert (await pool.score(episode("no"))).reward == 0.0


async def test_several_rewards_judge_an_episode_at_once(tmp_path: Path) -> None:
    here, there = (
        RewardSpec.of(me, sample_rewards.meets, options={"me": me, "other": other})
        for me, other in (("here", "there"), ("there", "here"))
    )
    judged = replace(episode(), task=Task("t", {"directory": str(tmp_path)}))
    async with RewardPool([here, there], log_dir=tmp_path, size=2) as pool:
        assert (await pool.score(judged)).reward == 2.0


async def test_the_first_of_several_rewards_that_fail_is_named(tmp_path: Path) -> None:
    specs = [spec("length"), spec("raises"), spec("text")]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        with pytest.raises(RewardError, match="reward 'raises'"):
            await pool.score(episode())


def test_a_function_becomes_a_reference_unless_no_process_could_find_it() -> None:
    assert RewardSpec.of("length", sample_rewards.length).reference.endswith("length")
    with pytest.raises(ConfigError, match="define it at the top level"):
        RewardSpec.of("inline", lambda episode: 1.0)


async def test_an_unknown_reference_fails_at_the_start_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no 'nowhere'.*defined there: .*length"):
        async with RewardPool([spec("nowhere")], log_dir=tmp_path):
            pass


def test_a_scalar_reward_counts_for_the_last_turn_beside_one_given_per_turn() -> None:
    verdicts = {
        "steps": (1.0, Outcome.scored(0.75, turn_rewards=(0.25, 0.5))),
        "answer": (2.0, Outcome.scored(1.0)),
    }
    outcome = combine(verdicts, num_turns=2)
    assert outcome.turn_rewards == (0.25, 2.5)
    assert outcome.reward == 2.75


def test_one_abstaining_reward_leaves_the_sum_undefined() -> None:
    outcome = combine({"a": (1.0, Outcome.scored(1)), "b": (1.0, Outcome.abstained())}, num_turns=1)
    assert outcome.kind is OutcomeKind.ABSTAIN


def test_a_reward_for_none_of_the_turns_is_no_zero() -> None:
    for nothing in ([None, None], (None, None)):
        assert read_verdict(nothing, episode()).kind is OutcomeKind.ABSTAIN
    verdicts = {
        "judge": (1.0, read_verdict([None, None], episode())),
        "length": (1.0, Outcome.scored(1)),
    }
    assert combine(verdicts, num_turns=2).kind is OutcomeKind.ABSTAIN


def test_an_episodes_reward_is_trained_where_no_turn_has_one() -> None:
    verdict = read_verdict(Outcome.scored(1.0, turn_rewards=(None, None)), episode())
    assert verdict == Outcome.scored(1.0)
    outcome = combine({"a": (2.0, verdict), "b": (1.0, Outcome.scored(0.5))}, num_turns=2)
    assert (outcome.reward, outcome.turn_rewards) == (2.5, ())


@pytest.mark.parametrize(
    "turn_rewards", [[0.5, None], (np.float32(0.5), None), np.array([0.5, 1.0], dtype=np.float32)]
)
def test_rewards_of_turns_are_plain_numbers_whatever_they_came_as(turn_rewards: Any) -> None:
    verdict = replace(Outcome.scored(1.0), turn_rewards=turn_rewards)
    assert repr(read_verdict(verdict, episode()).turn_rewards) in ("(0.5, None)", "(0.5, 1.0)")


@pytest.mark.parametrize(
    "result",
    [
        float("inf"),
        "1.0",
        {"reward": 1},
        [1.0],
        Outcome(OutcomeKind.REWARD),
        Outcome(OutcomeKind.REWARD, reward=float("nan")),
        Outcome.scored(1.0, turn_rewards=(1.0,)),
        Outcome.scored(1.0, metrics={"x": float("nan")}),
    ],
)
def test_what_is_not_a_verdict_is_refused(result: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_verdict(result, episode())
