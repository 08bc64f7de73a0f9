"""Samples whose weights were taken back are not trained."""

from collections.abc import Sequence
from typing import Literal

import pytest

from areal_sdk.rollout.groups import Rejection, ScoredEpisode, TriagedEpisode, iter_members
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Episode
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


@pytest.mark.parametrize("stale", ["wait", "drop", "mask"])
def test_an_episode_with_a_reward_is_trained_or_said_to_be_dropped_once_and_after_it_was_told(
    stale: Literal["wait", "drop", "mask"],
) -> None:
    scored: list[str] = []
    dropped: dict[str, DropReason] = {}

    def hear(episode: Episode | TriagedEpisode, triaged: ScoredEpisode | Rejection) -> None:
        if isinstance(triaged, ScoredEpisode):
            scored.append(triaged.trajectories[0].episode_id)

    def hear_dropped(reason: DropReason, ids: Sequence[str]) -> None:
        assert {*ids} <= {*scored}, "its record is written"
        assert not dropped.keys() & {*ids}
        dropped.update(dict.fromkeys(ids, reason))

    run = Run(
        stale=stale,
        num_tasks=40,
        runner={"straggler_rate": 0.3, "failure_rate": 0.2},
        dispatcher={"on_episode": hear},
    )
    run.buffer.on_dropped = hear_dropped

    async def play() -> None:
        async with run.dispatcher:
            for _ in range(6):
                await run.step()
            batch = await run.buffer.cut_batch(version=run.buffer.version, timeout_s=PATIENCE_S)
            run.buffer.take_back(batch, valid_from=run.buffer.version + 1)

    simulate(play())
    trained = [name for batch in run.batches for name in batch.episode_ids]
    assert not {*trained} & dropped.keys()
    assert len(scored) - len(trained) - len(dropped) == run.ledger.buffered
    assert DropReason.ROLLED_BACK in dropped.values()
    assert DropReason.GROUP_INCOMPLETE in dropped.values()


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
