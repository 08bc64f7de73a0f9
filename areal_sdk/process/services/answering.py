"""The side of a service that answers: each request is a call of a method of an object."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from areal_sdk.errors import ArealError, ContractError
from areal_sdk.process.channel import Channel, ChannelClosedError, Request
from areal_sdk.process.services.contract import Service, Stream, methods_of
from areal_sdk.process.threads import BackgroundTasks

logger = logging.getLogger(__name__)

EXIT_GRACE_S = 1.0
"""Seconds for calls to clean up when the channel closes."""


class Answering:
    """Calls the methods of a service as requests say, and sends what they return."""

    def __init__(
        self,
        service: Service,
        *,
        told: tuple[type[Exception], ...] = (Exception,),
        runner: asyncio.Runner | None = None,
    ) -> None:
        """`told`: the errors of methods that the caller is told. Any other error of a method is raised by `answer`.

        `runner` runs coroutines, each to its end before the next request.
        """
        self._service = service
        self._methods = methods_of(type(service))
        self._told: tuple[type[Exception], ...] = (ContractError, *told)
        self._runner = runner

    def answer(self, request: Request) -> None:
        """Call the method, and answer with its result or its error. A `Future` answers when it is done."""
        with suppress(ChannelClosedError):  # `receive` says so too
            try:
                result = self.call(request)
                if asyncio.iscoroutine(result):
                    assert self._runner is not None, "a coroutine needs an event loop"
                    self._runner.run(self._run(request, result))
                else:
                    self.send(request, result)
            except ChannelClosedError:
                raise
            except self._told as exc:
                fail(request, exc)

    def call(self, request: Request) -> Any:
        """The value that the method returns. ContractError names an unknown method, or arguments that do not fit."""
        method = self._methods.get(request.method)
        if method is None:
            raise ContractError(
                f"{type(self._service).__name__} has no method {request.method!r}; "
                f"it has {', '.join(sorted(self._methods))}"
            )
        arguments = method.arguments(request.payload, request.buffers)
        return getattr(self._service, request.method)(*arguments)

    def send(self, request: Request, result: Any) -> None:
        """Answer with what the method has returned."""
        match result:
            case Stream():
                result.begin(request, self._methods[request.method])
            case asyncio.Future():
                cancel = partial(result.get_loop().call_soon_threadsafe, result.cancel)
                request.when_cancelled(cancel)
                result.add_done_callback(partial(self._finish, request))
            case Future():
                request.when_cancelled(result.cancel)
                result.add_done_callback(partial(self._finish, request))
            case _:
                self._reply(request, result)

    def is_answered_at_once(self, method: str) -> bool:
        return hasattr(getattr(type(self._service), method, None), "is_answered_at_once")

    async def _run(self, request: Request, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work, name=request.method)
        self.send(request, task)
        await asyncio.wait({task})

    def _finish(self, request: Request, done: "Future[Any] | asyncio.Future[Any]") -> None:
        """Answer in the thread that has the result."""
        with suppress(ChannelClosedError):
            if done.cancelled():
                request.fail(RuntimeError(f"{request.method!r} cancelled its own task"))
            elif (error := done.exception()) is None:
                self._reply(request, done.result())
            else:
                fail(request, error)

    def _reply(self, request: Request, result: object) -> None:
        """Answer with a result, or with the error that says why the result cannot be sent."""
        try:
            request.reply(*self._methods[request.method].answered(result))
        except ChannelClosedError:
            raise
        except Exception as exc:  # noqa: BLE001 - the caller is told
            fail(request, exc)


def fail(request: Request, error: BaseException) -> None:
    """Tell the caller. The log gets the traceback of an error that is not the SDK's own."""
    if not isinstance(error, ArealError):
        logger.error("%s", request.method, exc_info=error)
    request.fail(error)


class LoopAnswering(Answering):
    """Answers on the running event loop, many calls at the same time."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.calls = BackgroundTasks()
        """Calls that have not ended."""

    def answer(self, request: Request) -> None:
        with suppress(ChannelClosedError):
            try:
                self.send(request, self.begin(request))
            except ChannelClosedError:
                raise
            except Exception as exc:  # noqa: BLE001 - the caller is told
                fail(request, exc)

    def begin(self, request: Request) -> Any:
        """Call the method; a coroutine becomes a task."""
        result = self.call(request)
        if asyncio.iscoroutine(result):
            result = asyncio.create_task(result, name=request.method)
            self.calls.keep(result)
        return result


async def answer_until_closed(channel: Channel, service: Service) -> None:
    """Answer on this event loop until the channel closes; then cancel the calls that have not ended.

    Raises the error of a method that is answered `at_once`.
    """
    answering = LoopAnswering(service)
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()

    def take(request: Request, is_answered: bool) -> None:
        if not is_answered:
            answering.answer(request)
            return
        try:
            answering.begin(request)
        except Exception as exc:  # noqa: BLE001 - raised below
            if not closed.done():
                closed.set_exception(exc)

    def close() -> None:
        if not closed.done():
            closed.set_result(None)

    def receive() -> None:  # in a thread: also while code blocks the loop
        try:
            while True:
                if (request := channel.receive()) is not None:
                    is_answered = answering.is_answered_at_once(request.method)
                    loop.call_soon_threadsafe(take, request, is_answered)
                    if is_answered:
                        request.reply()
        except ChannelClosedError:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(close)

    threading.Thread(target=receive, name="receiver", daemon=True).start()
    try:
        await closed
    finally:
        calls = list(answering.calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=EXIT_GRACE_S)
