"""What crosses between the main process and an agent's worker, in both directions.

Pickles, because tasks and messages hold what users put there. Only our own types travel back, so
that the main process imports nothing that an agent needs.

The token door of an episode in a worker: its questions go to the session in the main process.
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
    EnvironmentFailure,
    EpisodeError,
    InfrastructureError,
    RewardError,
)
from areal_sdk.gateway.errors import ApiError, session_closed
from areal_sdk.process import ChannelClosed, Request
from areal_sdk.reward import as_outcome
from areal_sdk.rollout.agents.adapters import PlayResult
from areal_sdk.types import Episode, Message, Outcome, Task, Tool, Turn

_ERRORS: Mapping[str, type[EpisodeError]] = {
    error.kind.value: error
    for error in (AgentError, RewardError, EnvironmentFailure, InfrastructureError, DeadlineError)
}
_NOBODY = Episode("", Task(""), (), Outcome.abstained())


@dataclass(frozen=True, slots=True)
class Order:
    """One episode to play: the task, and the fields of its `EpisodeContext` that are plain data."""

    task: Task
    base_url: str
    api_key: str
    model: str
    episode_id: str
    seed: int
    split: str


def pack_order(task: Task, context: EpisodeContext) -> bytes:
    order = Order(
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


def unpack_order(packed: bytes | memoryview) -> Order:
    try:
        return _unpickle(packed)  # type: ignore[no-any-return]
    except Exception as exc:
        raise InfrastructureError(
            f"a task cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain values "
            "and importable classes in Task.data, or set rollout.workers = 0"
        ) from exc


def pack_result(result: Any) -> bytes:
    """What an agent returned, reduced to our own types. ValueError for what is no verdict."""
    return _pickle(_plain(result))


def unpack_result(packed: bytes | memoryview) -> PlayResult:
    return _unpickle(packed)  # type: ignore[no-any-return]


def error_of(kind: str, message: str, *, trace: str) -> EpisodeError:
    """The error that a worker reported, as it would have been raised here."""
    return _ERRORS[kind].at("", message, trace=trace)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of something that a worker asked of its session."""

    value: Any = None
    error: Exception | None = None


def pack_answer(value: Any = None, error: Exception | None = None) -> bytes:
    """As it is; an exception that cannot travel becomes a `RuntimeError` with its name in it."""
    if error is not None:
        return _pickle(_portable_error(error))
    return _pickle((value, None))


def unpack_answer(packed: bytes | memoryview) -> Answer:
    value, error = _unpickle(packed)
    if isinstance(error, dict):  # an ApiError takes keywords, which pickle does not keep
        error = ApiError(**error)
    return Answer(value, error)


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
    """Numbers of numpy and torch become Python's; of an episode, what decides its training."""
    if isinstance(result, Episode):
        return replace(result, task=Task(result.task.id), outcome=_plain(result.outcome))
    if isinstance(result, Outcome):
        return replace(
            result,
            reward=_number(result.reward),
            turn_rewards=tuple(_number(reward) for reward in result.turn_rewards),
            success=None if result.success is None else bool(result.success),
            metrics={str(name): float(value) for name, value in result.metrics.items()},
            message=str(result.message),
        )
    if isinstance(result, Mapping):
        return {str(name): float(value) for name, value in result.items()}
    if hasattr(result, "item"):
        result = result.item()
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        return [_number(reward) for reward in result]
    if result is not None and not isinstance(result, (bool, int, float)):
        as_outcome(result, _NOBODY)  # says what a verdict may be
    return result


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(packed: bytes | memoryview) -> Any:
    return pickle.loads(packed)


TURNS_TIMEOUT_S = 60.0
"""The main process answers from memory; more means that it is in trouble."""
POLL_S = 0.1


class Questions:
    """Every question of this worker that is not answered yet. Thread-safe."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._open: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def ask(self, request: Request, question: str, packed: bytes = b"", **fields: Any) -> "Asked":
        """Put a question to the main process, as a part of the answer to its `play`."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._is_closed:
                raise session_closed()
            number = next(self._ids)
            self._open[number] = answer
        asked = Asked(self, request, number, answer)
        try:
            request.emit({"ask": question, "question": number, **fields}, [packed])
        except BaseException:
            self.forget(number)
            raise
        return asked

    def settle(self, request: Request) -> None:
        """Deliver an answer, unless nobody waits for it any more."""
        request.reply()
        answer = self.forget(request.payload["question"])
        if answer is None:
            return
        try:
            _settle(answer, unpack_answer(request.buffers[0]))
        except Exception as exc:  # noqa: BLE001 - it belongs to whoever asked
            _settle(answer, Answer(error=exc))

    def forget(self, number: int) -> "Future[Answer] | None":
        with self._lock:
            return self._open.pop(number, None)

    def close(self) -> None:
        """The main process is gone, or wants us to be: nothing will be answered."""
        with self._lock:
            self._is_closed = True
            unanswered = list(self._open.values())
            self._open.clear()
        for answer in unanswered:
            _refuse(answer)


class Asked:
    """One question and its answer to come."""

    def __init__(
        self, questions: Questions, request: Request, number: int, answer: "Future[Answer]"
    ) -> None:
        self.number = number
        self.answer = answer
        self._questions = questions
        self._request = request

    def withdraw(self) -> None:
        """Nobody waits any more: the main process need not go on with it."""
        if self._questions.forget(self.number) is not None:
            with contextlib.suppress(RuntimeError, ChannelClosed):  # the episode has ended
                self._request.emit({"ask": "withdraw", "question": self.number})


class SessionDoor:
    """`generate` and `turns` of one episode's context. After `close` it refuses, as sessions do."""

    def __init__(self, request: Request, questions: Questions) -> None:
        self._request = request
        self._questions = questions
        self._known: list[Turn] = []
        self._asked: set[Asked] = set()
        self._is_closed = False

    async def generate(
        self,
        prompt: Sequence[Message] | Sequence[int],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
    ) -> Turn:
        """Sample one turn; it is recorded in the main process before it is here."""
        packed = pack_request(
            prompt=prompt,
            tools=tools,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
        )
        asked = self._ask("generate", packed)
        try:
            answer = await asyncio.wrap_future(asked.answer)
        finally:
            self._asked.discard(asked)
            asked.withdraw()
        return cast(Turn, _value(answer))

    def turns(self) -> Sequence[Turn]:
        """The turns recorded so far, whichever door they came through.

        Waits for the main process, not for its loop: the caller's own loop stands meanwhile.
        """
        if self._is_closed:
            return self._known
        asked = self._ask("turns", since=len(self._known))
        try:
            self._known += _value(self._wait_for(asked))
        finally:
            self._asked.discard(asked)
            asked.withdraw()
        return self._known

    def close(self) -> None:
        """The episode is over: what still waits is refused, what comes later too."""
        self._is_closed = True
        for asked in list(self._asked):
            asked.withdraw()
            _refuse(asked.answer)

    def _wait_for(self, asked: Asked) -> Answer:
        """Wait in this thread; once the episode is cancelled there will be no answer."""
        for _ in range(round(TURNS_TIMEOUT_S / POLL_S)):
            try:
                return asked.answer.result(timeout=POLL_S)
            except TimeoutError:
                if self._request.cancelled:
                    raise session_closed() from None
        raise CallTimeoutError(f"the main process did not answer within {TURNS_TIMEOUT_S:g} s")

    def _ask(self, question: str, packed: bytes = b"", **fields: Any) -> Asked:
        if self._is_closed or self._request.cancelled:
            raise session_closed()
        asked = self._questions.ask(self._request, question, packed, **fields)
        self._asked.add(asked)
        if self._is_closed:  # closed by another thread meanwhile
            _refuse(asked.answer)
        return asked


def _value(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value


def _refuse(answer: "Future[Answer]") -> None:
    _settle(answer, Answer(error=session_closed()))


def _settle(answer: "Future[Answer]", value: Answer) -> None:
    with contextlib.suppress(InvalidStateError):  # its `generate` was cancelled
        answer.set_result(value)
