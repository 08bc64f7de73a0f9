"""The record that a session keeps of a call whose answer has no tokens."""

import secrets
import time
from collections.abc import Callable
from typing import Any

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sessions.history import History, Placement
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.untrusted import LARGE, LargeWork
from areal_sdk.gateway.wire.http import parse_body
from areal_sdk.routes import TextRecord, TextReply, TextRequest
from areal_sdk.types import Turn


class SessionTextRecord(TextRecord):
    """Records the turns of one call."""

    def __init__(
        self, session: Session, raw: bytes, *, read: Callable[[Any], TextRequest], large: LargeWork
    ) -> None:
        self.reply_id = f"reply-{secrets.token_hex(16)}"
        self._session = session
        self._raw = raw
        self._read_request = read
        self._large = large
        self._began = time.monotonic()

    def fault(self, what: str) -> None:
        self._session.notes.fault(what)

    def miss_the_end(self, why: str) -> None:
        told = f"{why}: the trace has its beginning alone, and its client has all of it"
        self._session.notes.fault(told)
        self._session.notes.notice(told)

    async def keep(self, read: Callable[[], TextReply | None], *, size: int) -> None:
        session = self._session
        async with session.placing:
            size += len(self._raw)
            found = await self._large.run(size, lambda: self._read_safely(read))
            if session.is_closed:
                return  # the client has its answer
            if found is None:
                session.notes.notice(
                    "an answer of the provider could not be read, and is not in the trace"
                )
                return
            reply_id, turns = found
            reply_id = reply_id or self.reply_id
            if reply_id in session.replies.turns_of:
                session.replies.note_repeated(reply_id)
            for choice, turn in enumerate(turns):
                index = session.record(turn)
                session.replies.note(reply_id, index, choice=choice)
                session.replies.note(self.reply_id, index, choice=choice)

    def _read_safely(self, read: Callable[[], TextReply | None]) -> tuple[str, list[Turn]] | None:
        """The id and the turns of a call; None if the call cannot be read. The client has its answer in any case."""
        try:
            return self._read(read())
        except (ApiError, TypeError, KeyError, AttributeError, ValueError, RecursionError):
            return None

    def _read(self, answer: TextReply | None) -> tuple[str, list[Turn]] | None:
        """The reply's id and its turns, which `history` knows from here on; None for a reply without any."""
        if answer is None:
            return None
        question, history = self._question(), self._session.history_of()
        placed = [
            self._read_choice(history, question, answer, index)
            for index in range(len(answer.choices))
        ]
        for index, (placement, turn) in enumerate(placed):
            history.add(placement, turn.message, len(self._session.turns) + index)
        return answer.id, [turn for _, turn in placed]

    def _question(self) -> TextRequest:
        known, raw = self._session.body, self._raw
        try:
            if len(raw) > LARGE and known.num_new(raw) > LARGE:
                return self._read_request(parse_body(raw))
            body, _ = known.read(raw, parse=parse_body)
        except ApiError:  # the provider could read it
            self._session.notes.notice(
                "a request could not be read: the trace has its answer alone"
            )
            return TextRequest(())
        return self._read_request(body)

    def _read_choice(
        self, history: History, question: TextRequest, answer: TextReply, index: int
    ) -> tuple[Placement, Turn]:
        session, choice = self._session, answer.choices[index]
        messages = question.prompt_of(index, len(answer.choices))
        placement = history.place(messages, tools=question.tools, options={})
        parent = placement.parent
        if (before := session.replies.turns_of.get(question.previous_id or "")) is not None:
            parent = max(before.values())  # the provider keeps what was said until then
        turn = Turn(
            (),
            (),
            (),
            (),
            message=choice.message,
            new_messages=messages[placement.num_matched :],
            finish_reason=choice.finish_reason,
            parent=parent,
            fork=history.reason(placement) if parent == placement.parent else None,
            duration_s=time.monotonic() - self._began,
            began_s=max(0.0, self._began - session.opened_at),
            details={
                **({"request": dict(question.asked)} if question.asked else {}),
                **({"tools": list(question.tools)} if question.tools and parent is None else {}),
                **({"usage": dict(answer.usage)} if answer.usage else {}),
            },
        )
        return placement, turn
