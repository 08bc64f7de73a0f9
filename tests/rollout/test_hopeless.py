"""Runs that cannot go on: they end with the reason, and those that can do not."""

import asyncio
from typing import Any

import pytest

from areal_sdk.errors import LedgerError, RolloutError, WaitTimeoutError
from areal_sdk.rollout.groups import Rejection
from areal_sdk.rollout.tasks import IssuedTask
from areal_sdk.telemetry.ledger import DropReason
from tests.rollout.simulation import Run, SimulatedRunner, simulate, tasks


def test_an_agent_that_never_works_ends_the_run_with_its_error() -> None:
    run = Run(runner={"failure_rate": 1.0})
    with pytest.raises(RolloutError, match=r"64 episodes in a row .* simulated"):
        simulate(run.steps(1))
    assert run.ledger.started < 100


def test_episodes_that_are_all_masked_end_the_run_with_the_reason() -> None:
    run = Run(runner={"truncated_rate": 1.0}, dispatcher={"truncated": "mask"})
    with pytest.raises(RolloutError, match=r'truncated: .* limit.* truncated = "mask"'):
        simulate(run.steps(1))


def test_what_ends_the_run_is_said_of_its_last_group_and_of_no_earlier_one() -> None:
    run = Run(runner={"truncated_rate": 1.0}, dispatcher={"truncated": "mask"})
    issued = IssuedTask(tasks(1)[0], epoch=9, position=0)
    run.ledger.start(2)
    failed = run.buffer.admit(issued)
    for _ in range(2):
        run.buffer.reject(failed, Rejection(DropReason.ERROR_AGENT, "long ago"))
    run.buffer.resolve(failed)
    with pytest.raises(RolloutError) as raised:
        simulate(run.steps(1))
    assert "long ago" not in str(raised.value)


def test_a_sibling_that_was_stopped_for_another_does_not_hide_the_others_error() -> None:
    run = Run(
        group_size=4,
        runner={"failure_rate": 0.9},
        incomplete_groups="drop",
    )
    with pytest.raises(RolloutError, match=r"in a row .* simulated"):
        simulate(run.steps(20))


def test_while_the_engine_is_down_no_group_starts_and_lost_ones_prove_nothing() -> None:
    async def scenario() -> None:
        run = Run(eta=3, batch=40, max_inflight=200, runner={"failure_rate": 1.0})
        async with run.dispatcher:
            await asyncio.sleep(0.001)
            started = run.ledger.started
            assert started > 64
            run.buffer.hold(True)
            await asyncio.sleep(100)  # all that ran is lost, more than the limit
            assert run.ledger.started == started
            assert run.ledger.running == 0
            run.buffer.hold(False)
            run.runner.failure_rate = 0.0
            await run.step()

    simulate(scenario())


def test_a_bug_in_the_runner_reaches_whoever_waits_for_a_batch() -> None:
    class Broken(SimulatedRunner):
        async def run(self, request: object) -> Any:
            raise KeyError("a bug")

    run = Run()
    run.dispatcher._runner = Broken(lambda: 0)
    with pytest.raises(KeyError, match="a bug"):
        simulate(run.steps(1))
    assert run.ledger.running == 0


def test_books_that_do_not_balance_stop_the_run_even_after_its_last_batch() -> None:
    async def scenario() -> None:
        run = Run()
        async with run.dispatcher:
            await run.step()
            run.ledger._started += 1
            await asyncio.sleep(100)

    with pytest.raises(LedgerError, match="do not balance"):
        simulate(scenario())


def test_a_batch_that_never_comes_is_a_named_timeout() -> None:
    async def scenario() -> None:
        run = Run(runner={"straggler_rate": 1.0, "straggler_s": 1e6})
        async with run.dispatcher:
            await run.buffer.cut_batch(version=0, timeout_s=100.0)

    with pytest.raises(WaitTimeoutError, match=r"rollouts: the .* episodes of step 1"):
        simulate(scenario())
