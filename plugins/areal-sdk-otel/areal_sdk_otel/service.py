"""The thread beside a run: it sends outboxes to a collector, and answers Prometheus. The run waits for neither."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import aiohttp
from aiohttp import web

from areal_sdk_otel.numbers import CONTENT_TYPE
from areal_sdk_otel.outbox import REQUEST_S, Outbox

logger = logging.getLogger("areal_sdk.otel")

START_S = 10.0


class Service:
    """An event loop in a thread of its own, from the start of a run to its end."""

    def __init__(
        self,
        outboxes: Sequence[Outbox],
        *,
        metrics: Callable[[], str],
        address: tuple[str, int],
        headers: Mapping[str, str],
    ) -> None:
        self._outboxes = outboxes
        self._metrics = metrics
        self._address = address
        self._headers = headers
        self.url = ""
        """The address of the numbers; empty if they are not served."""
        self._has_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._has_started.wait(START_S)

    def stop(self, *, within_s: float) -> None:
        """Send what waits, for at most `within_s`, and say what was lost."""
        self._deadline = time.monotonic() + within_s
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(within_s + START_S)
        for outbox in self._outboxes:
            outbox.end()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._has_started.set()  # also if it could not start: the run must not wait for it

    async def _serve(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        runner = await self._listen()
        self._has_started.set()
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
                sending = [
                    asyncio.create_task(outbox.send_until(self._closing, session))
                    for outbox in self._outboxes
                ]
                await self._closing.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                        await asyncio.gather(*sending)
        finally:
            await runner.cleanup()

    async def _listen(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        host, port = self._address
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            logger.warning(
                "otel: /metrics is not served on %s:%d (%s); set observer.otel.metrics_port, 0 for a free one",
                host,
                port,
                error.strerror or error,
            )
        else:
            self.url = f"http://{host}:{runner.addresses[0][1]}/metrics"
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(text=self._metrics(), headers={"Content-Type": CONTENT_TYPE})
