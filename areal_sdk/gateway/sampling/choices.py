"""Samples the choices of one request at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sampling.reader import Delta, Prepared
from areal_sdk.gateway.sessions.replies import RecordAbandoned
from areal_sdk.gateway.sessions.session import Session

Choice = tuple[int, Delta]


async def run_choices(
    completer: Completer,
    session: Session,
    choices: Sequence[Prepared],
    *,
    left: Callable[[int, RecordAbandoned], None] | None = None,
) -> AsyncGenerator[Choice, None]:
    """Yield the deltas of all choices as they come, each with the number of its choice. `left` is that of
    `Completer.run`."""
    if len(choices) == 1:
        on_left = None if left is None else partial(left, 0)
        async with aclosing(completer.run(session, choices[0], left=on_left)) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: asyncio.Queue[Choice | Exception | None] = asyncio.Queue(maxsize=256)
    tasks = [
        asyncio.create_task(_run_one(i, completer, session, prepared, queue, left))
        for i, prepared in enumerate(choices)
    ]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_one(
    number: int,
    completer: Completer,
    session: Session,
    prepared: Prepared,
    queue: asyncio.Queue[Choice | Exception | None],
    left: Callable[[int, RecordAbandoned], None] | None,
) -> None:
    on_left = None if left is None else partial(left, number)
    try:
        async with aclosing(completer.run(session, prepared, left=on_left)) as deltas:
            async for delta in deltas:
                await queue.put((number, delta))
    except Exception as exc:  # noqa: BLE001 - raised again where the request is answered
        await queue.put(exc)
    else:
        await queue.put(None)
