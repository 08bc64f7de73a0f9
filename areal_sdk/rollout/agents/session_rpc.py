"""An episode's session, called from a worker over RPC, and the messages that carry the calls.

The main process sends a `PlayOrder`; the worker plays it with a `RemoteSession`, whose calls the
session in the main process answers. The messages are pickles, because tasks hold values of users.
Only types of the SDK travel back, so that the main process imports nothing that an agent needs.
"""

import asyncio
import contextlib
import itertools
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from typing import Any, cast

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import (
    AgentError,
    CallTimeoutError,
    DeadlineError,
    EnvError,
    EpisodeError,
    InfrastructureError,
    RewardError,
)
from areal_sdk.gateway.errors import ApiError, session_closed
from areal_sdk.process import ChannelClosedError, Request
from areal_sdk.reward import as_outcome, as_turn_rewards
from areal_sdk.rollout.agents.adapters import PlayResult
from areal_sdk.rollout.judging.verdicts import portable
from areal_sdk.types import Episode, Message, Outcome, Task, Tool, Turn, unpack_turns

_ERRORS: Mapping[str, type[EpisodeError]] = {
    error.kind.value: error
    for error in (AgentError, RewardError, EnvError, InfrastructureError, DeadlineError)
}
_NOBODY = Episode("", Task(""), (), Outcome.abstained())


@dataclass(frozen=True, slots=True)
class PlayOrder:
    """An episode for a worker: the task, and the plain fields of its `EpisodeContext`."""

    task: Task
    base_url: str
    api_key: str
    model: str
    episode_id: str
    seed: int
    split: str


def pack_order(task: Task, context: EpisodeContext) -> bytes:
    order = PlayOrder(
        task=task,
        base_url=context.base_url,
        api_key=context.api_key,
        model=context.model,
        episode_id=context.episode_id,
        seed=context.seed,
        split=context.split,
    )
    try:
        return _pickle(order)
    except Exception as exc:
        raise InfrastructureError(  # no agent is to blame
            f"task {task.id!r} cannot be sent to a worker ({exc}): keep to plain values in "
            "Task.data, or set rollout.workers = 0"
        ) from exc


def unpack_order(packed: bytes | memoryview) -> PlayOrder:
    try:
        return _unpickle(packed)  # type: ignore[no-any-return]
    except Exception as exc:
        raise InfrastructureError(
            f"a task cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain values "
            "and importable classes in Task.data, or set rollout.workers = 0"
        ) from exc


def pack_result(result: Any) -> bytes:
    """The agent's result, reduced to types of the SDK. ValueError if the result is not a verdict."""
    return _pickle(_plain(result))


def unpack_result(packed: bytes | memoryview) -> PlayResult:
    return _unpickle(packed)  # type: ignore[no-any-return]


def error_of(kind: str, message: str, *, trace: str) -> EpisodeError:
    """The `EpisodeError` that a worker reported, as the main process would have raised it."""
    return _ERRORS[kind].at("", message, trace=trace)


@dataclass(frozen=True, slots=True)
class CallResult:
    """The value or the error of a call from a worker to its session."""

    value: Any = None
    error: Exception | None = None


def pack_call_result(value: Any = None, error: Exception | None = None) -> bytes:
    """The pickled result. An exception that cannot be pickled becomes a `RuntimeError` that names it."""
    if error is not None:
        return _pickle(_portable_error(error))
    return _pickle((value, None))


def unpack_call_result(packed: bytes | memoryview) -> CallResult:
    value, error = _unpickle(packed)
    if isinstance(error, dict):  # an ApiError takes keywords, which pickle does not keep
        error = ApiError(**error)
    return CallResult(value, error)


def pack_request(**request: Any) -> bytes:
    """The arguments of `context.generate`."""
    return _pickle(request)


def unpack_request(packed: bytes | memoryview) -> Mapping[str, Any]:
    return _unpickle(packed)  # type: ignore[no-any-return]


def _portable_error(error: Exception) -> tuple[None, Any]:
    if isinstance(error, ApiError):
        return None, dict(vars(error))
    try:
        pickle.loads(_pickle(error))
    except Exception:  # noqa: BLE001 - an exception may do anything when it is copied
        return None, RuntimeError(f"{type(error).__name__}: {error}")
    return None, error


def _plain(result: Any) -> Any:
    """`result` with plain Python numbers; an `Episode` without its task's data."""
    if isinstance(result, Episode):
        return replace(result, task=Task(result.task.id), outcome=_plain(result.outcome))
    if isinstance(result, Outcome):
        return portable(result)
    if isinstance(result, Mapping):
        return dict(zip(map(str, result), as_turn_rewards([*result.values()]), strict=True))
    if hasattr(result, "item"):
        result = result.item()
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        return list(as_turn_rewards(result))
    if result is not None and not isinstance(result, (bool, int, float)):
        as_outcome(result, _NOBODY)  # the error lists what a verdict may be
    return result


def _pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(packed: bytes | memoryview) -> Any:
    return pickle.loads(packed)


TURNS_TIMEOUT_S = 60.0
"""Deadline of `turns`, which the main process answers from memory."""
POLL_S = 0.1
"""Pause between two looks whether the episode of a waiting thread was cancelled."""


class PendingCalls:
    """The calls of this worker to the main process that have no result yet. Thread-safe."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._open: dict[int, Future[CallResult]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def begin(
        self, request: Request, method: str, packed: bytes = b"", **fields: Any
    ) -> "PendingCall":
        """Call the main process: the call travels as a part of the streamed answer to `play`."""
        answer: Future[CallResult] = Future()
        with self._lock:
            if self._is_closed:
                raise session_closed()
            number = next(self._ids)
            self._open[number] = answer
        call = PendingCall(self, request, number, answer)
        try:
            request.emit({"call": method, "number": number, **fields}, [packed])
        except BaseException:
            self.forget(number)
            raise
        return call

    def settle(self, request: Request) -> None:
        """Deliver a result, unless its call was withdrawn."""
        request.reply()
        answer = self.forget(request.payload["number"])
        if answer is None:
            return
        try:
            _settle(answer, unpack_call_result(request.buffers[0]))
        except Exception as exc:  # noqa: BLE001 - it is raised in the caller
            _settle(answer, CallResult(error=exc))

    def forget(self, number: int) -> "Future[CallResult] | None":
        with self._lock:
            return self._open.pop(number, None)

    def close(self) -> None:
        """Refuse every pending call, and all later ones, because the channel is closed."""
        with self._lock:
            self._is_closed = True
            unanswered = list(self._open.values())
            self._open.clear()
        for answer in unanswered:
            _refuse(answer)


class PendingCall:
    """One call to the main process, and the future of its result."""

    def __init__(
        self, calls: PendingCalls, request: Request, number: int, answer: "Future[CallResult]"
    ) -> None:
        self.number = number
        self.answer = answer
        self._calls = calls
        self._request = request

    def withdraw(self) -> None:
        """Have the main process cancel the call, because its caller stopped waiting."""
        if self._calls.forget(self.number) is not None:
            with contextlib.suppress(RuntimeError, ChannelClosedError):  # the episode has ended
                self._request.emit({"call": "withdraw", "number": self.number})


class RemoteSession:
    """`generate` and `turns` of an episode's context in a worker. Refuses calls after `close`."""

    def __init__(self, request: Request, calls: PendingCalls) -> None:
        self._request = request
        self._calls = calls
        self._known: list[Turn] = []
        self._pending: set[PendingCall] = set()
        self._is_closed = False

    async def generate(
        self,
        prompt: Sequence[Message] | Sequence[int],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
    ) -> Turn:
        """Sample one turn. The main process records the turn before it returns it."""
        packed = pack_request(
            prompt=prompt,
            tools=tools,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            stop_tokens=stop_tokens,
        )
        call = self._ask("generate", packed)
        try:
            answer = await asyncio.wrap_future(call.answer)
        finally:
            self._pending.discard(call)
            call.withdraw()
        return cast(Turn, _value(answer))

    def turns(self) -> Sequence[Turn]:
        """The turns recorded so far, from HTTP requests and from `generate`.

        Blocks the calling thread, and so its event loop, until the main process answers.
        """
        if self._is_closed:
            return self._known
        call = self._ask("turns", since=len(self._known))
        try:
            self._known += unpack_turns(_value(self._wait_for(call)), self._known)
        finally:
            self._pending.discard(call)
            call.withdraw()
        return self._known

    def close(self) -> None:
        """Refuse pending calls, and all later ones, because the episode is over."""
        self._is_closed = True
        for call in list(self._pending):
            call.withdraw()
            _refuse(call.answer)

    def _wait_for(self, call: PendingCall) -> CallResult:
        """Wait in this thread. A cancelled episode gets no result, so the wait ends."""
        for _ in range(round(TURNS_TIMEOUT_S / POLL_S)):
            try:
                return call.answer.result(timeout=POLL_S)
            except TimeoutError:
                if self._request.cancelled:
                    raise session_closed() from None
        raise CallTimeoutError(f"the main process did not answer within {TURNS_TIMEOUT_S:g} s")

    def _ask(self, method: str, packed: bytes = b"", **fields: Any) -> PendingCall:
        if self._is_closed or self._request.cancelled:
            raise session_closed()
        call = self._calls.begin(self._request, method, packed, **fields)
        self._pending.add(call)
        if self._is_closed:  # closed by another thread meanwhile
            _refuse(call.answer)
        return call


def _value(answer: CallResult) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value


def _refuse(answer: "Future[CallResult]") -> None:
    _settle(answer, CallResult(error=session_closed()))


def _settle(answer: "Future[CallResult]", value: CallResult) -> None:
    with contextlib.suppress(InvalidStateError):  # its `generate` was cancelled
        answer.set_result(value)
