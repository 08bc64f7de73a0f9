"""`asyncio.run` for a loop that also runs other people's code.

`asyncio.run` waits at its end for every task to obey its cancellation and for every thread of the
default executor to return: an agent that does neither would keep Ctrl-C waiting for ever.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from areal_sdk.errors import ConfigError

T = TypeVar("T")
logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 0.5
"""For tasks that outlived `main`; those of episodes have had their time to clean up before."""


def run_to_the_end(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`; whatever it leaves behind holds nobody up.

    Raises KeyboardInterrupt on Ctrl-C once `main` has unwound, as `asyncio.run` does.
    """
    if _is_in_a_loop():
        main.close()
        raise ConfigError(
            "this runs an event loop of its own, and one runs here already: call it from a "
            "thread, as in `await asyncio.to_thread(areal_sdk.train, ...)`"
        )
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    try:
        return runner.run(main)
    finally:
        # Not `runner.close()`: it waits for tasks and threads without a deadline.
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_tasks() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if not rest:
        return
    _, stubborn = await asyncio.wait(rest, timeout=CANCEL_GRACE_S)
    for task in stubborn:
        logger.warning("%s ignores cancellation: it ends with this process", task.get_name())


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
