"""`asyncio.run` for a loop that also runs other people's code.

`asyncio.run` waits at its end for every task to obey its cancellation and for every thread of the
default executor to return: an agent that does neither would keep Ctrl-C waiting for ever.
"""

import asyncio
import inspect
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from areal_sdk.errors import ConfigError
from areal_sdk.loop.interruption import blocking_calls_end
from areal_sdk.loop.termination import sigterm_as_ctrl_c
from areal_sdk.telemetry.watchdog import Watchdog

T = TypeVar("T")
logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 0.5
"""For tasks that outlived `main`; those of episodes have had their time to clean up before."""


class StoppedAtOnce(KeyboardInterrupt):
    """A second Ctrl-C: the run was left where it was."""


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`; whatever it leaves behind holds nobody up.

    Raises KeyboardInterrupt on Ctrl-C or SIGTERM once `main` has unwound, as `asyncio.run` does;
    a second one waits for nothing and raises `StoppedAtOnce`.
    """
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
        finally:
            has_unwound = True

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
        stubborn = loop.run_until_complete(_end_tasks())
        if not stubborn:  # else generators of theirs may still be running
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_tasks() -> set["asyncio.Task[Any]"]:
    """Cancel what is left; returns what ignores that."""
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
    """For the tasks left behind: `deadline` has named those that it left to themselves."""


def refuse_inside_a_loop() -> None:
    """ConfigError where an event loop runs already, as it does in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "this runs an event loop of its own, and one runs here already, as in a notebook. Put the "
        "agent in a file and give it to the command, in a notebook as a cell `!areal-sdk train "
        "my_agent.py`, which its stop button ends. Or call it from a thread, as in `await "
        "asyncio.to_thread(areal_sdk.train, ...)`: nothing stops that before its last step, so say "
        "when it ends (run.steps, run.max_minutes)"
    )
