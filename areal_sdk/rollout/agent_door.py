"""The token door of an episode in a worker: its questions go to the session in the main process."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, cast

from areal_sdk.errors import CallTimeoutError
from areal_sdk.gateway.errors import session_closed
from areal_sdk.process import ChannelClosed, Request
from areal_sdk.rollout.agent_wire import Answer, pack_request, unpack_answer
from areal_sdk.types import Message, Tool, Turn

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
