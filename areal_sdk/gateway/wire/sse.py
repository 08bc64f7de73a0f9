"""Server-sent events: written as they come, together when several wait, kept alive when none do."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from aiohttp import web

from areal_sdk.gateway.errors import ApiError

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def send_events(
    request: web.Request,
    events: AsyncGenerator[bytes, None],
    *,
    write_error: Callable[[ApiError], bytes],
    errors: Counter[str],
    keep_alive: bytes = b": keep-alive\n\n",
) -> web.StreamResponse:
    """Send `events` as the response to `request`.

    The status is real: nothing is sent before the first event, so an error up to there is raised
    here and gets its own status. One that comes later becomes the last event; it is logged, and counted
    in `errors`.
    """
    feed = _Feed(events)
    task = asyncio.create_task(feed.pump())
    response = web.StreamResponse(headers=_HEADERS)
    try:
        is_last = False
        while not is_last:
            data = await feed.take(KEEP_ALIVE_S)
            is_last = feed.is_over  # asked here: while this is written, more may come
            if feed.error is not None:
                if not data and not response.prepared:
                    raise feed.error
                error = as_api_error(feed.error)
                errors[error.code or "internal"] += 1
                logger.warning("%s %s broke off: %s", request.method, request.path, error)
                data += write_error(error)
            elif not data and not is_last:
                data = keep_alive
            if not response.prepared:
                await response.prepare(request)
            await (response.write_eof(data) if is_last else response.write(data))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return response


def as_api_error(error: Exception) -> ApiError:
    """An error that a client may see; what we did not foresee goes to the log instead."""
    if isinstance(error, ApiError):
        return error
    logger.error("a stream failed", exc_info=error)
    return ApiError(500, "The gateway failed; its log has the details.", retry=False)


class _Feed:
    """Events that wait to be written."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.error: Exception | None = None
        self.is_over = False
        self._events = events
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()

    async def pump(self) -> None:
        """Take events from the source as fast as it gives them."""
        try:
            async with aclosing(self._events):
                async for event in self._events:
                    self._waiting.append(event)
                    self._news.set()
        except Exception as exc:  # noqa: BLE001 - handed over to the response's own task
            self.error = exc
        finally:
            self.is_over = True
            self._news.set()

    async def take(self, timeout_s: float) -> bytes:
        """What has come since the last call; empty after `timeout_s` of silence or at the end."""
        with suppress(TimeoutError):  # what came with it is taken all the same
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        waiting, self._waiting = b"".join(self._waiting), []
        return waiting
