"""Samples whose weights were taken back are not trained."""

from typing import Literal

import pytest

from areal_sdk.rollout.groups import iter_members
from areal_sdk.telemetry.ledger import DropReason
from tests.rollout.simulation import PATIENCE_S, Run, simulate


@pytest.mark.parametrize("stale", ["wait", "drop", "mask"])
@pytest.mark.parametrize("eta", [0, 2, 5])
def test_nothing_that_taken_back_weights_have_sampled_is_trained(
    stale: Literal["wait", "drop", "mask"], eta: int
) -> None:
    run = Run(
        eta=eta, stale=stale, num_tasks=40, runner={"straggler_rate": 0.2, "failure_rate": 0.1}
    )

    async def go_back_twice() -> None:
        async with run.dispatcher:
            for _ in range(2):
                for _ in range(4):
                    await run.step()
                batch = await run.buffer.cut_batch(version=run.buffer.version, timeout_s=PATIENCE_S)
                valid_from = run.buffer.version + 1
                run.buffer.take_back(batch, valid_from=valid_from)
                run.check()
                run.dispatcher.set_version(valid_from)
                run.check()
                for _ in range(4):
                    trained = await run.step()
                    members = list(iter_members(trained.finished))
                    assert members
                    assert min(m.oldest_version or 0 for m in members) >= valid_from

    simulate(go_back_twice())
    assert run.ledger.dropped[DropReason.ROLLED_BACK] >= 2 * 4
    assert run.buffer.recent.lost_shares["timeout_share"] < 0.2


def test_a_run_that_loses_all_that_it_plays_to_going_back_is_not_hopeless() -> None:
    run = Run(max_inflight=16, max_lost_in_a_row=8)

    async def go_back_again_and_again() -> None:
        async with run.dispatcher:
            for _ in range(12):
                batch = await run.buffer.cut_batch(version=run.buffer.version, timeout_s=PATIENCE_S)
                run.buffer.take_back(batch, valid_from=run.buffer.version + 1)
                run.dispatcher.set_version(run.buffer.version + 1)
                run.check()

    simulate(go_back_again_and_again())
