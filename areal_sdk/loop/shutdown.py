"""`asyncio.run` for a loop that also runs other people's code.

At its end `asyncio.run` waits until every task has obeyed its cancellation, and until every thread of
the default executor has returned. With an agent that does neither, Ctrl-C would wait for ever.

SIGTERM, which `kill` and batch systems send, ends a run as Ctrl-C does.

Ctrl-C also works while an agent blocks the event loop. asyncio handles Ctrl-C in the next round of the loop. But if
an agent waits for the gateway with a blocking client, there is no next round. So the blocking call is ended first, as
if the agent were cancelled. The run then ends as usual.
"""

import asyncio
import inspect
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from areal_sdk.errors import ConfigError
from areal_sdk.errors.blame import running_users_line
from areal_sdk.rollout.agents.adapters import is_playing
from areal_sdk.rollout.agents.deadline import INTERRUPTED
from areal_sdk.telemetry.live.watchdog import Watchdog

T = TypeVar("T")
logger = logging.getLogger(__name__)

SAME_WITHIN_S = 1.0
"""Seconds within which a second signal counts as the same one: `timeout` signals its child and then the whole group,
and a wrapper passes on the Ctrl-C that its terminal sent to both."""
CANCEL_GRACE_S = 0.5
"""Seconds for tasks that outlived `main`. Tasks of episodes had their time to clean up before."""


class StoppedAtOnce(KeyboardInterrupt):
    """A second Ctrl-C: the run was left where it was."""


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`. Tasks and threads that it leaves behind delay nothing. Raises KeyboardInterrupt on Ctrl-C
    or SIGTERM once `main` has unwound, as `asyncio.run` does. A second signal, at least `SAME_WITHIN_S` later, waits
    for nothing and raises `StoppedAtOnce`."""
    try:
        refuse_inside_a_loop()
    except ConfigError:
        main.close()
        raise
    # A loop that Ctrl-C left half made could not be closed: it is heard when there is one.
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    has_unwound = False

    async def noticed(*loop_runs: Callable[[], None]) -> T:
        nonlocal has_unwound
        for tell in loop_runs:
            tell()
        try:
            async with Watchdog():
                return await main
        finally:  # a second Ctrl-C may also meet code of `main` itself, and cut it short
            has_unwound = not isinstance(sys.exception(), KeyboardInterrupt)

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        with sigterm_as_ctrl_c() as pass_on, blocking_calls_end() as interrupt:
            return runner.run(noticed(interrupt, pass_on))
    except KeyboardInterrupt:
        if inspect.getcoroutinestate(main) == inspect.CORO_CREATED:
            main.close()  # Ctrl-C came before its first line
        elif not has_unwound:
            raise StoppedAtOnce from None
        raise
    finally:
        # Not `runner.close()`: it waits for tasks and threads without a deadline.
        loop.set_exception_handler(_say_nothing)
        for task in asyncio.all_tasks(loop):
            task.cancel()  # before the loop runs again: what has not begun would block it now
        ending = loop.create_task(_end_tasks())
        while not ending.done():
            with suppress(KeyboardInterrupt):  # of a task that Ctrl-C has met: it is known
                loop.run_until_complete(ending)
        if not ending.result():  # else generators of theirs may still be running
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_tasks() -> set["asyncio.Task[Any]"]:
    """Cancel the remaining tasks. Returns those that ignore it."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if not rest:
        return set()
    _, stubborn = await asyncio.wait(rest, timeout=CANCEL_GRACE_S)
    for task in stubborn:
        logger.debug("%s ignores cancellation: it ends with this process", task.get_name())
    return stubborn


def _say_nothing(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log nothing about tasks left behind: `rollout.agents.deadline` has named those of agents."""


def refuse_inside_a_loop() -> None:
    """Raise ConfigError if an event loop runs already, as it does in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "this runs an event loop of its own, and one runs here already, as in a notebook: write "
        "`await areal_sdk.aio.train(...)` or `await areal_sdk.aio.evaluate(...)` instead, with the "
        "same arguments. Or put the agent in a file and give it to the command, in a notebook as a "
        "cell `!areal-sdk train my_agent.py`"
    )


_OURS = "areal_sdk_ends_the_run"
"""Attribute that marks the handlers of `sigterm_as_ctrl_c`."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[Callable[[], None]]:
    """Let SIGTERM do what Ctrl-C does within this block. A handler that the program has set for SIGTERM stays.

    Call the yielded function once the loop runs: by then asyncio has put its own handler in place. Without a loop, do
    not call it. If blocks are nested, the inner one counts until it ends.
    """
    is_main = threading.current_thread() is threading.main_thread()
    outer = signal.getsignal(signal.SIGTERM)
    if not is_main or (outer is not signal.SIG_DFL and not getattr(outer, _OURS, False)):
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGINT)
    is_deaf = before is signal.SIG_IGN  # a program that ignores Ctrl-C: only SIGTERM ends it
    if is_deaf:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what asyncio looks for
    handler = signal.getsignal(signal.SIGINT)

    def note_handler() -> None:
        nonlocal handler
        handler = signal.getsignal(signal.SIGINT)
        if is_deaf:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def pass_on(_number: int, frame: FrameType | None) -> None:
        if callable(handler):
            handler(signal.SIGINT, frame)

    setattr(pass_on, _OURS, True)
    signal.signal(signal.SIGTERM, pass_on)
    try:
        yield note_handler
    finally:
        signal.signal(signal.SIGTERM, outer)
        if is_deaf:
            signal.signal(signal.SIGINT, before)


@contextmanager
def blocking_calls_end() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C also end the call of an agent that blocks the loop, within this block. A second signal within
    `SAME_WITHIN_S` is ignored.

    Call the yielded function once the loop runs: by then asyncio has put its own handler in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None  # who has a handler of their own keeps it
        return

    def install() -> None:
        loop, asyncios = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
        first_at = -math.inf

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal first_at
            now = time.monotonic()
            if now - first_at < SAME_WITHIN_S:
                return
            first_at = now
            if callable(asyncios):
                asyncios(number, frame)  # cancels `main`; the second raises KeyboardInterrupt
            if frame is not None and running_users_line(frame) is not None:
                _cancel_agents(loop)
                raise asyncio.CancelledError(INTERRUPTED)

        signal.signal(signal.SIGINT, interrupt)

    try:
        yield install
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cancel_agents(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of agents, also those that have not begun: each of them may block the event loop, and `main` unwinds only
    after all of them."""
    for task in asyncio.all_tasks(loop):
        if is_playing(task):
            task.cancel(INTERRUPTED)
