"""A child's requests, received by a thread and handled by its event loop."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress

from areal_sdk.process.channel import Channel, ChannelClosedError, Request

logger = logging.getLogger(__name__)


class Inbox:
    """Hands each request of a channel to `handle`, which the running event loop calls."""

    def __init__(
        self,
        channel: Channel,
        handle: Callable[[Request], None],
        *,
        replied_at_once: Container[str] = (),
    ) -> None:
        """The thread answers the methods `replied_at_once`, also while code blocks the event loop."""
        self._channel = channel
        self._handle = handle
        self._replied_at_once = replied_at_once
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._bug: Exception | None = None

    async def until_closed(self) -> None:
        """Receive until the channel closes. Raises what `handle` raised: nobody else would hear of it."""
        threading.Thread(target=self._receive, name="inbox", daemon=True).start()
        await self._closed.wait()
        if self._bug is not None:
            raise self._bug

    def _receive(self) -> None:
        try:
            while True:
                request = self._channel.receive()
                if request is not None:
                    self._loop.call_soon_threadsafe(self._take, request)
                    if request.method in self._replied_at_once:
                        request.reply()
        except ChannelClosedError:
            with suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._closed.set)

    def _take(self, request: Request) -> None:
        try:
            self._handle(request)
        except Exception as exc:  # noqa: BLE001 - `until_closed` raises it
            self._bug = exc
            self._closed.set()


async def reply_after(work: Awaitable[None], request: Request, *, what: str) -> None:
    """Reply when `work` is done, or with its error; `what` names it in the log."""
    try:
        await work
    except Exception as exc:
        logger.exception(what)
        request.fail(exc)
    else:
        request.reply()
