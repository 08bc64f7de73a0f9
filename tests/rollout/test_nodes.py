"""Rollout nodes in real processes: episodes come back once, whatever happens to the nodes."""

import asyncio
import os
import pickle
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import ProcessError
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.launch import LocalLauncher
from areal_sdk.process import Child, ChildReply, ProcessSpec
from areal_sdk.process.frames import view_of
from areal_sdk.process.pools.supervision import RestartPolicy
from areal_sdk.rollout.groups import Rejection, ScoredEpisode, TriagedEpisode, Truncated, triage
from areal_sdk.rollout.nodes.episode_wire import pack_episode, unpack_episode
from areal_sdk.rollout.nodes.link import RolloutNode
from areal_sdk.rollout.nodes.pool import NodePool, NodeRunner
from areal_sdk.rollout.nodes.server import _failed as not_played
from areal_sdk.rollout.nodes.triaged import pack_triaged, unpack_triaged
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.episode_log import prepare
from areal_sdk.telemetry.live.waits import current_waits
from areal_sdk.types import Episode, ErrorKind, Outcome, Task, Turn
from tests.toolbox.waiting import until


def spec(model_dir: Path) -> Callable[[int, Mapping[str, Any]], ProcessSpec]:
    def make(index: int, state: Mapping[str, Any]) -> ProcessSpec:
        args = {"model_dir": str(model_dir), "state": dict(state)}
        return ProcessSpec(f"node-{index}", "tests.rollout.node_entry:main", args)

    return make


@asynccontextmanager
async def pool_of(
    size: int, model_dir: Path, log_dir: Path, **options: Any
) -> AsyncIterator[tuple[NodePool, NodeRunner[Episode], list[str]]]:
    said: list[str] = []
    launcher = options.pop("launcher", None) or LocalLauncher(log_dir=log_dir)
    pool = NodePool(spec(model_dir), size=size, launcher=launcher, say=said.append, **options)
    await pool.start({"version": 3})
    try:
        async with pool.runner(split="train", sampling=SamplingPolicy()) as runner:
            yield pool, runner, said
    finally:
        await pool.aclose()


def request(name: str = "task.0.0", **data: Any) -> EpisodeRequest:
    return EpisodeRequest(name, Task("task", data), group="task.0", sibling=2, epoch=1)


def seen_by(node: RolloutNode) -> list[ChildReply]:
    """The reports of a node, from now on."""
    reports: list[ChildReply] = []
    take = node._take

    def note(report: ChildReply) -> None:
        reports.append(report)
        take(report)

    node._take = note  # type: ignore[method-assign]
    return reports


SCORED = Outcome.scored(0.25, turn_rewards=(0.5, None), metrics={"x": 1.0})


def episode(*turns: Turn, outcome: Outcome = SCORED) -> Episode:
    known = request()
    return Episode(known.id, known.task, turns, outcome, "task.0", 2, 1, 1, True, 1.5)


@pytest.mark.parametrize("logprobs", [(-0.5, -1.25), (-0.1, -0.3)], ids=["float32", "float64"])
def test_an_episode_comes_back_as_it_was(logprobs: tuple[float, ...]) -> None:
    first = Turn((1, 2, 3), (4, 5), logprobs, (0, 1), {"role": "assistant", "content": "é\ud800"})
    second = Turn(
        (9,), (), (), (), num_shared=5, shares_with=0, parent=0, _before=first, new_messages=({},)
    )
    sent = episode(first, second)
    buffers = [view_of(part).cast("B") for part in pack_episode(sent)]
    found = unpack_episode(request(), buffers)
    assert found == sent
    assert found.turns[1].prompt_tokens == (1, 2, 3, 4, 5, 9)
    assert len(buffers[2]) == len(logprobs) * (4 if logprobs[0] == -0.5 else 8)


def test_an_episode_without_turns_comes_back(tmp_path: Path) -> None:
    sent = episode(outcome=Outcome.failed(ErrorKind.AGENT, "no", trace="line 1"))
    parts = [view_of(part) for part in pack_episode(sent)]
    assert unpack_episode(request(), parts) == sent


@pytest.mark.parametrize("truncated", ["score", "mask"])
def test_a_training_episode_comes_back_triaged_as_here(truncated: Truncated) -> None:
    first = Turn((1, 2, 3), (4, 5), (-0.5, -0.1), (3, 4), {"role": "assistant", "content": "é"})
    second = Turn((9,), (6,), (-1.0,), (5,), num_shared=5, shares_with=0, parent=0, _before=first)
    second = replace(second, offers_tools=True)
    fork = Turn((8,), (7, 7), (-1.0, -2.0), (5, 5), num_shared=3, shares_with=0, _before=first)
    for sent in (
        episode(first, second, fork),
        episode(first, outcome=Outcome.abstained("why not")),
        episode(outcome=Outcome.failed(ErrorKind.AGENT, "no", trace="line 1")),
        not_played(request(), "the runner did not open"),
    ):
        buffers = [
            memoryview(bytearray(view_of(b))) for b in pack_triaged(sent, truncated=truncated)
        ]
        found = unpack_triaged(request(), buffers)
        here = triage(sent, truncated=truncated)
        assert found.triaged == here
        assert found.read() == sent
        if isinstance(here, ScoredEpisode):
            assert isinstance(found.triaged, ScoredEpisode)
            assert not any(t.tokens.flags.writeable for t in found.triaged.trajectories)
            assert len(found.triaged.trajectories) == 2
        assert found.record == prepare(
            sent,
            trajectories=() if isinstance(here, Rejection) else here.trajectories,
            dropped=here.reason if isinstance(here, Rejection) else None,
        )


async def test_nodes_play_follow_the_news_and_survive_a_lost_one(
    model_dir: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "alive"
    marker.touch()
    async with pool_of(2, model_dir, tmp_path) as (pool, runner, said):
        reports = [(node, seen_by(node)) for node in pool._nodes]
        names = [f"task.{number}.0" for number in range(8)]
        found = await asyncio.gather(*(runner.run(request(name)) for name in names))
        assert [e.id for e in found] == names
        assert {(e.group, e.sibling, e.epoch, e.attempt) for e in found} == {("task.0", 2, 1, 0)}
        assert [turn.text for turn in found[0].turns] == ["four", "four"]
        assert {v for e in found for turn in e.turns for v in turn.versions} == {3}
        for node, report in [(node, one) for node, seen in reports for one in list(seen)]:
            node._take(report)  # an episode that is told twice is taken once
        assert sum(node.num_played for node in pool._nodes) == 8
        await pool.tell({"version": 4})
        hanging = asyncio.create_task(runner.run(request("hangs", then="hang")))
        await until(lambda: runner.oldest_version("hangs") == 4)
        await until(lambda: any("a tool that never" in wait.name for wait in current_waits()))
        assert any("1 episodes, the oldest is hangs" in wait.name for wait in current_waits())
        # The node that dies may be that of the episode that hangs: it is played again too.
        dies = request("dies", then="die_once", marker=str(marker))
        again = await runner.run(dies)
        assert again.attempt == 1
        assert again.reward == 0.5
        assert {v for turn in again.turns for v in turn.versions} == {4}
        await until(lambda: bool(said))
        assert "exited with code 7; log: " in said[0]
        await until(lambda: pool.num_started == 3)
        hanging.cancel()
        await asyncio.wait({hanging})
        await until(lambda: not any("hangs" in wait.name for wait in current_waits()))
    assert not [wait for wait in current_waits() if "node-" in wait.name]


async def test_an_episode_that_kills_every_node_is_an_infrastructure_fault(
    model_dir: Path, tmp_path: Path
) -> None:
    async with pool_of(1, model_dir, tmp_path, infra_retries=0) as (_, runner, _said):
        odd = await runner.run(request(odd=lambda: 0))
        assert odd.outcome.error is ErrorKind.INFRASTRUCTURE
        assert "rollout.nodes = 1" in odd.outcome.message
        lost = await runner.run(request(then="die"))
        assert lost.outcome.error is ErrorKind.INFRASTRUCTURE
        assert "node-0" in lost.outcome.message
        assert "log: " in lost.outcome.message


async def test_a_node_that_stood_still_hears_the_news_when_it_goes_on(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.process.pools.broadcast.CONFIRM_WITHIN_S", 0.1)
    async with pool_of(1, model_dir, tmp_path) as (pool, runner, said):
        (pid,) = pool.pids.values()
        os.kill(pid, signal.SIGSTOP)
        try:
            await pool.tell({"version": 4})
            await pool.tell({"version": 5})
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: pool._engine_state.is_confirmed)
        found = await runner.run(request())
        assert {v for turn in found.turns for v in turn.versions} == {5}
        (warning,) = said
        assert "node-0 has not heard news of the engine (no answer within 0.1 s)" in warning


async def test_a_node_that_cannot_take_the_news_is_told_again(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk.process.pools.broadcast.SEND_AGAIN_S", 0.0)
    async with pool_of(1, model_dir, tmp_path) as (pool, runner, said):
        await pool.tell({"version": 4, "refused_until": 3})  # it was told once, at its start
        found = await runner.run(request())
        assert {v for turn in found.turns for v in turn.versions} == {4}
        (warning,) = said
        assert "the engine is away" in warning


class Unreadable:
    """Can be pickled, and not be read."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return (int, ("no number",))


async def test_the_record_of_a_task_that_cannot_be_read_names_its_episode(
    model_dir: Path, tmp_path: Path
) -> None:
    async with pool_of(1, model_dir, tmp_path) as (pool, _runner, _said):
        training = pool.training_runner(sampling=SamplingPolicy(), truncated="score")
        ended = await training.run(request(odd=Unreadable()))
    assert isinstance(ended, TriagedEpisode)
    assert isinstance(ended.triaged, Rejection)
    assert "a task cannot be read in a rollout node (ValueError" in ended.triaged.message
    row = ended.record.episode
    assert (row["id"], row["task"]["id"], row["group"]) == ("task.0.0", "task", "task.0")


async def test_an_episode_that_cannot_be_read_fails_and_the_others_go_on(
    model_dir: Path, tmp_path: Path
) -> None:
    async with pool_of(1, model_dir, tmp_path) as (pool, runner, _said):
        (node,) = pool._nodes
        bad, good = (asyncio.create_task(runner.run(request(name))) for name in ("bad", "good"))
        await until(lambda: len(node.playing) == 2)
        first = next(iter(node.playing))
        node._take(ChildReply({"ended": [[first, 4]]}, [memoryview(b"no pickle")] * 4))
        with pytest.raises(pickle.UnpicklingError):
            await bad
        assert (await good).reward == 0.5
        assert not node.is_lost


class FullLauncher(LocalLauncher):
    """Has room for one node, then none for `num_refusals` tries."""

    num_refusals = 0
    num_launches = 0

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        self.num_launches += 1
        if 1 < self.num_launches <= 1 + self.num_refusals:
            raise ProcessError("no room")
        return await super().launch(specs)


@pytest.mark.parametrize("num_refusals", [2, 3])
async def test_a_node_that_cannot_be_replaced_at_once_is_tried_again(
    num_refusals: int, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RestartPolicy(max_restarts=2, first_pause_s=0.0)
    monkeypatch.setattr("areal_sdk.rollout.nodes.pool.RETRIES", policy)
    launcher = FullLauncher(log_dir=tmp_path)
    launcher.num_refusals = num_refusals
    async with pool_of(1, model_dir, tmp_path, launcher=launcher) as (pool, runner, said):
        os.kill(pool.pids["node-0"], signal.SIGKILL)
        await until(lambda: not pool.pids)
        if num_refusals == 2:
            assert (await runner.run(request())).reward == 0.5
        else:
            with pytest.raises(ProcessError, match="did not start: no room 3 times in 600 s"):
                await runner.run(request())
        assert said.count("warning: node-0 did not start: no room: tried again in 0 s") == 2
