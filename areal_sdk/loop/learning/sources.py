"""The source of a run's episodes: its tasks, or the callers of its gateway."""

import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

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
from areal_sdk.rollout.tasks import TaskBook, TaskKey, TaskSource, TaskStream
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.telemetry import Ledger
from areal_sdk.telemetry.journal import Journal
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.types import Episode, Task


@asynccontextmanager
async def play_tasks(
    train_tasks: Sequence[Task] | TaskStream,
    services: Services,
    state: RunState,
    progress: Progress,
) -> AsyncIterator[EpisodeSource]:
    """The source of episodes in which the agent plays the training tasks."""
    config, rollout = services.config, services.config.rollout
    async with AsyncExitStack() as stack:
        journal, first = await _open_journal(services, state, progress, stack)
        tasks = TaskSource(
            train_tasks,
            seed=config.run.seed,
            shuffle=rollout.shuffle,
            epochs=rollout.epochs,
            first=first,
            on_consumed=(lambda key: None) if journal is None else journal.forget,
        )
        buffer = _make_buffer(services, state, tasks=tasks)
        finished: EpisodeObserver = progress.finished
        curriculum = train_tasks.curriculum if isinstance(train_tasks, TaskStream) else None
        if curriculum is not None:
            finished = _observed(curriculum, finished)
        update_s = services.engine.info.restart_s + await in_thread(
            lambda: update_timeout_s(services.model.directory), name="size of weights"
        )
        runner = await stack.enter_async_context(services.playing.training_runner(journal))
        yield Dispatcher(
            buffer,
            runner=runner,
            tasks=tasks,
            truncated=rollout.truncated,
            on_episode=finished,
            stalled_s=stalled_s(config, update_s=update_s),
        )


async def _open_journal(
    services: Services, state: RunState, progress: Progress, stack: AsyncExitStack
) -> tuple[Journal | None, frozenset[TaskKey]]:
    """The journal of open episodes, and the tasks whose episodes go on where they were."""
    config, rollout = services.config, services.config.rollout
    directory = services.run_dir.open_episodes
    if not rollout.resume_episodes:
        forget_all = partial(shutil.rmtree, directory, ignore_errors=True)
        await in_thread(forget_all, name="forget open episodes")
        return None, frozenset()
    journal = Journal(directory)
    await in_thread(journal.start, name="open the journal")
    stack.push_async_callback(in_thread, journal.close, name="close the journal")
    restore = partial(journal.restore, version=state.version, max_staleness=rollout.max_staleness)
    found = await in_thread(restore, name="read open episodes")
    if found.keys:
        progress.say(
            f"{counted(len(found.keys), 'unfinished episode')} will go on after "
            f"{counted(found.num_answers, 'recorded answer')} (rollout.resume_episodes)"
        )
    if found.num_too_old:
        progress.say(
            f"{counted(found.num_too_old, 'unfinished episode')} will begin anew: sampled by weights that are more "
            f"than rollout.max_staleness = {rollout.max_staleness} updates away; a lower run.checkpoint_every keeps more"
        )
    if config.run.deterministic:  # its order is fixed
        return journal, frozenset()
    return journal, frozenset((key.epoch, key.task_id) for key in found.keys)


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
    """The source of episodes that callers play, who open sessions at the gateway when they like."""
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
