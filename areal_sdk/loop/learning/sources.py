"""The source of a run's episodes: its tasks, or the callers of its gateway."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from areal_sdk.flow import FlowRules
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.learning.steps import stalled_s, update_timeout_s
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services.opening import Services
from areal_sdk.loop.serving import announce
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerEpisodes, CallerTasks
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.groups import EpisodeObserver, Rejection, ScoredEpisode, TriagedEpisode
from areal_sdk.rollout.source import EpisodeSource
from areal_sdk.rollout.tasks import TaskBook, TaskSource, TaskStream
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.telemetry import Ledger
from areal_sdk.types import Episode, Task


@asynccontextmanager
async def play_tasks(
    train_tasks: Sequence[Task] | TaskStream,
    services: Services,
    state: RunState,
    progress: Progress,
) -> AsyncIterator[EpisodeSource]:
    """The agent plays the training tasks."""
    config, rollout = services.config, services.config.rollout
    tasks = TaskSource(
        train_tasks, seed=config.run.seed, shuffle=rollout.shuffle, epochs=rollout.epochs
    )
    buffer = _make_buffer(services, state, tasks=tasks)
    finished: EpisodeObserver = progress.finished
    curriculum = train_tasks.curriculum if isinstance(train_tasks, TaskStream) else None
    if curriculum is not None:
        finished = _observed(curriculum, finished)
    update_s = services.engine.info.restart_s + await in_thread(
        lambda: update_timeout_s(services.model.directory), name="size of weights"
    )
    async with services.playing.training_runner() as runner:
        yield Dispatcher(
            buffer,
            runner=runner,
            tasks=tasks,
            truncated=rollout.truncated,
            on_episode=finished,
            stalled_s=stalled_s(config, update_s=update_s),
        )


def _observed(curriculum: Curriculum, tell: EpisodeObserver) -> EpisodeObserver:
    """An observer that also tells the curriculum of every episode that was scored or dropped."""

    def finished(episode: Episode | TriagedEpisode, triaged: ScoredEpisode | Rejection) -> None:
        if isinstance(triaged, ScoredEpisode):
            curriculum.observe(episode.task, epoch=episode.epoch, is_success=triaged.success)
        else:
            curriculum.reject(episode.task, epoch=episode.epoch, reason=triaged.reason)
        tell(episode, triaged)

    return finished


@asynccontextmanager
async def follow_callers(
    services: Services, state: RunState, progress: Progress
) -> AsyncIterator[EpisodeSource]:
    """Follow the episodes of callers, who open sessions at the gateway when they like."""
    callers = services.playing.callers
    announce(services.config, callers.gateway, say=progress.say)
    tasks = CallerTasks()
    yield CallerEpisodes(
        # However many of its episodes fail: callers need not give anything to train.
        _make_buffer(services, state, tasks=tasks, max_lost_in_a_row=sys.maxsize),
        sessions=callers.sessions,
        tasks=tasks,
        truncated=services.config.rollout.truncated,
        rewards=callers.rewards,
        on_episode=progress.finished,
        on_untrained=progress.untrained,
    )


def _make_buffer(
    services: Services,
    state: RunState,
    *,
    tasks: TaskBook,
    max_lost_in_a_row: int | None = None,
) -> TrajectoryBuffer:
    """The buffer of a run that begins or continues at `state`."""
    assert services.trainer is not None
    config = services.config
    return TrajectoryBuffer(
        FlowRules(config.rollout, in_order=config.run.deterministic),
        tasks=tasks,
        ledger=Ledger.restore(state.ledger) if state.ledger else Ledger(),
        version=state.version,
        idle_groups=services.trainer.info.idle_groups,
        max_lost_in_a_row=max_lost_in_a_row,
    )
