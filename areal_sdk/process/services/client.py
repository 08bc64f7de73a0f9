"""The typed client of a service: the method of a contract, its arguments, and a deadline."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Generic, Protocol, TypeVar, TypeVarTuple, Unpack

from areal_sdk.errors import CallTimeoutError
from areal_sdk.process.channel import Channel
from areal_sdk.process.child import Child
from areal_sdk.process.frames import JSON, Buffer, ChildReply
from areal_sdk.process.services.contract import Answer, Service, Stream, method_of

S = TypeVar("S", bound=Service, contravariant=True)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class WayToProcess(Protocol):
    """The way to a process: a `Child`, a pool of them, or the `Channel` to the main process."""

    async def call(
        self, method: str, payload: JSON = None, buffers: Sequence[Buffer] = (), *, timeout_s: float
    ) -> ChildReply: ...


class Client(Generic[S]):
    """Calls the methods of one contract through `caller`, whose errors are passed on."""

    def __init__(self, caller: WayToProcess) -> None:
        self._caller = caller

    async def call(
        self, method: Callable[[S, Unpack[Ts]], Answer[R]], *arguments: *Ts, timeout_s: float
    ) -> R:
        """The result of a method. A deadline or a cancellation cancels the call in the process."""
        about = method_of(method)
        reply = await self._caller.call(about.name, *about.called(*arguments), timeout_s=timeout_s)
        result: R = about.result(reply.payload, reply.buffers)
        return result


class StreamClient(Client[S]):
    """Calls a child, also methods that answer in parts."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self._child = child

    def stream(
        self, method: Callable[[S, Unpack[Ts]], Stream[R]], *arguments: *Ts, idle_timeout_s: float
    ) -> AsyncGenerator[R, None]:
        """The parts of an answer. `aclose` it early (or leave `aclosing`) to cancel the call."""
        about = method_of(method)
        payload, buffers = about.called(*arguments)
        return self._child.parts(
            about.name, payload, buffers, about.result, idle_timeout_s=idle_timeout_s
        )


class MainClient(Client[S]):
    """Calls the main process from a child, also from threads."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._channel = channel

    def tell(self, method: Callable[[S, Unpack[Ts]], Answer[None]], *arguments: *Ts) -> None:
        """Begin a call whose answer nobody waits for."""
        about = method_of(method)
        self._channel.begin(about.name, *about.called(*arguments))

    def wait(
        self, method: Callable[[S, Unpack[Ts]], Answer[R]], *arguments: *Ts, timeout_s: float
    ) -> R:
        """The result of a method. Blocks the calling thread."""
        about = method_of(method)
        answer = self._channel.begin(about.name, *about.called(*arguments))
        try:
            reply = answer.result(timeout_s)
        except TimeoutError:
            answer.cancel()
            what = f"the main process did not answer {about.title} within {timeout_s:g} s"
            raise CallTimeoutError(what) from None
        result: R = about.result(reply.payload, reply.buffers)
        return result
