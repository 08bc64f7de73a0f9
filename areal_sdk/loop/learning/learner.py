"""The trainer of a run and the state of its weights, which change together and are saved together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from areal_sdk.config import Config
from areal_sdk.errors import ArealError, DamagedError, cause_of
from areal_sdk.loop.learning.state import Checkpoints, RunState, way_around
from areal_sdk.loop.plan.models import FINAL, FoundModel, keep_description
from areal_sdk.loop.progress import Progress
from areal_sdk.models.rounding import LITTLE, Rounding
from areal_sdk.process.threads import in_thread
from areal_sdk.telemetry import RunDir
from areal_sdk.trainer import Trainer

T = TypeVar("T")

CURE = 'set engine.dtype = "float32", take more steps, or raise trainer.learning_rate'
"""The cure for an engine that samples weights whose rounding hides what was learnt."""


@dataclass(slots=True)
class Learner:
    """The trainer and the state of its weights, which change together and are saved together.

    A step or a save that has begun goes on when the run is cancelled: `settle` waits for its end.
    """

    trainer: Trainer
    state: RunState
    checkpoints: Checkpoints
    on_settled: Callable[[], None] = lambda: None
    """Function that `settle` calls to report a step that ended after the run was cancelled."""
    _work: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    _writing: "asyncio.Task[None] | None" = field(default=None, repr=False)
    """A checkpoint that is being written while the trainer goes on."""
    _saved: tuple[int, int] | None = None
    """The steps, of warm-up and of training, that the newest checkpoint holds."""
    _is_torn: bool = False
    """Whether a step is being taken, so that the weights may be ahead of the state."""

    @property
    def at_work(self) -> str | None:
        """The step or the checkpoint that the trainer works on now, if any."""
        busy = [task for task in (self._work, self._writing) if task and not task.done()]
        return busy[0].get_name() if busy else None

    @property
    def is_saved(self) -> bool:
        return self._saved == (self.state.warmup_steps, self.state.step)

    @property
    def has_learnt(self) -> bool:
        return bool(self.state.warmup_steps or self.state.step)

    async def learn(self, step: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `step`, which changes the weights and then the state.

        Raises the error of a checkpoint that could not be written meanwhile.
        """
        if (writing := self._writing) is not None and writing.done():
            self._writing = None
            if (error := writing.exception()) is not None:
                step.close()
                raise error

        async def whole() -> T:
            self._is_torn = True
            result = await step
            self._is_torn = False
            return result

        return await self._to_its_end(whole(), what)

    async def load(self, checkpoint: Path) -> None:
        """Continue from `checkpoint`. If it is damaged, the error says how to continue without it."""
        try:
            self.state.update_from(await self.trainer.load(checkpoint))
        except DamagedError as exc:
            raise DamagedError(f"{exc}; {way_around(checkpoint)}") from exc
        self._saved = (self.state.warmup_steps, self.state.step)

    async def begin_save(self) -> None:
        """Begin a checkpoint of the present state, which is written beside the next steps. Waits for the checkpoint
        before."""
        await self.written()
        state = (self.state.warmup_steps, self.state.step)

        def saved() -> None:
            self._saved = state

        await self._begin_writing(
            lambda: self.checkpoints.begin(self.trainer, self.state),
            f"the checkpoint of {self.state.reached}",
            then=saved,
        )

    async def begin_keep(self, path: Path) -> None:
        """Begin a checkpoint of the present state in `path`, which is written beside the next steps. Runs do not
        resume from it."""
        await self.written()
        await self._begin_writing(
            lambda: self.trainer.begin_save(path, self.state.to_json()),
            f"the checkpoint {path.name}",
        )

    async def save(self) -> None:
        """Save the present state in a checkpoint, which is written when this returns."""
        await self.written()
        if not self.is_saved:
            await self.begin_save()
            await self.written()

    async def written(self) -> None:
        """Wait for the checkpoint that is being written, if any, and raise its error once."""
        if (writing := self._writing) is not None:
            await asyncio.wait({writing})
            self._writing = None
            writing.result()

    async def settle(self) -> bool:
        """Wait for the step or the save that a cancellation found at work.

        Returns whether the trainer's weights are now those of `state`, so that they can be saved.
        """
        if self._work is not None:
            await asyncio.wait({self._work})
        if self._writing is not None:
            await asyncio.wait({self._writing})
            if self._writing.exception() is not None:
                self._writing = None  # the state is not saved: that is all there is to know now
        self.on_settled()
        return not self._is_torn and self.trainer.is_alive

    async def _begin_writing(
        self,
        begin: Callable[[], Awaitable[Awaitable[None]]],
        what: str,
        *,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a checkpoint. It is finished beside the next steps, and `then` is called after it."""

        async def begun() -> None:
            written = await begin()
            self._writing = asyncio.create_task(finish(written), name=what)

        async def finish(written: Awaitable[None]) -> None:
            await written
            then()

        await self._to_its_end(begun(), what)

    async def _to_its_end(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which goes on if its caller is cancelled."""
        task = self._work = asyncio.create_task(work, name=what)
        return await asyncio.shield(task)


class TrainsModel(Protocol):
    """The plan of a run that begins with the weights of `model`."""

    @property
    def config(self) -> Config: ...

    @property
    def model(self) -> FoundModel: ...


@asynccontextmanager
async def open_learner(
    trainer: Trainer | None,
    plan: TrainsModel,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
    *,
    failure: Callable[[], Exception | None] = lambda: None,
) -> AsyncIterator[Learner]:
    """The learner of a run, whose weights are saved whatever ends the run.

    `failure` returns the error of a service if its end cancelled this block, and None if Ctrl-C did.
    """
    assert trainer is not None
    await in_thread(
        lambda: keep_description(plan.model.directory, run_dir), name="keep description"
    )
    run = plan.config.run
    checkpoints = Checkpoints(run_dir.checkpoints, run.checkpoint_every, run.keep_checkpoints)
    learner = Learner(trainer, state, checkpoints)
    try:
        yield learner
    except BaseException as error:
        why = _told(error, failure())
        await _keep_what_was_learnt(learner, why, grace_s=run.stop_grace_s, say=progress.say)
        raise


async def write_final(learner: Learner, run_dir: RunDir, progress: Progress) -> None:
    """Write the last weights as a model. Tells the user if their dtype lost most of what was learnt."""
    progress.enter("writing the final weights")
    final = run_dir.checkpoints / FINAL
    await learner.trainer.export(final)
    rounding = await in_thread(lambda: Rounding.read(final), name="read final weights")
    if rounding is not None and rounding.seen < LITTLE:
        step = learner.state.step
        whole = f"areal-sdk export {run_dir.path} --step {step} --dtype float32 --to exported"
        progress.say(f"note: checkpoints/{FINAL}: {rounding}; {CURE}; without this loss: {whole}")


def _told(error: BaseException, failure: Exception | None) -> str | None:
    """The reason for the end of the run in words; None if the user ended it."""
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling() or not isinstance(cause_of(error), Exception):
        return None if failure is None else str(failure)
    return str(cause_of(error)) or type(cause_of(error)).__name__


async def _keep_what_was_learnt(
    learner: Learner, why: str | None, *, grace_s: float, say: Callable[[str], None]
) -> None:
    """Let the trainer finish its step, and save the result. Another Ctrl-C cuts this off. `why` is the reason for the
    end, unless the user ended the run."""
    what = learner.state.reached
    again = " again" if why is None else ""
    until = f"(up to {grace_s:g} s: run.stop_grace_s; Ctrl-C{again}: at once)"
    limit = asyncio.timeout(grace_s)
    try:
        async with limit:
            if (at_work := learner.at_work) is not None:
                what = at_work
                if not learner.trainer.is_alive:
                    say(f"warning: a process of the trainer died: {what} is lost")
                elif why is not None:
                    say(f"warning: {why}; {what} is finished and saved first {until}")
                else:
                    say(f"stopping: waits for {what} {until}")
            if await learner.settle() and learner.has_learnt and not learner.is_saved:
                what = f"the checkpoint of {learner.state.reached}"
                say(f"stopping: writes {what} {until}")
                await learner.save()
    except (TimeoutError, asyncio.CancelledError):
        # Early versions of Python 3.11 raise the second in a task that was cancelled before.
        if not limit.expired():
            raise
        say(f"warning: {what} was given up: it took longer than run.stop_grace_s = {grace_s:g}")
    except ArealError as exc:
        say(f"warning: {learner.state.reached} was not saved: {exc}")
