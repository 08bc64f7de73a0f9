"""Answers a request of any wire format: parse, prepare, sample, write."""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson
from aiohttp import web

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sampling.choices import run_choices
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sampling.reader import Completed, Prepared
from areal_sdk.gateway.sessions.replies import AbandonedReply, RecordAbandoned
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.untrusted import LARGE, is_small, weight
from areal_sdk.gateway.wire.fields import Fields
from areal_sdk.gateway.wire.http import parse_body, send_events
from areal_sdk.gateway.wire.reply import ParseRequest, ReplyWriter

_LARGE_BODY = 8 * LARGE
"""Largest `weight` of a body that the event loop itself reads. Reading takes less time than
rendering and encoding, for which `Completer` uses threads."""


class Endpoint:
    """Answers the requests of one path that samples."""

    def __init__(self, completer: Completer, parse: ParseRequest, *, lenient: bool = False) -> None:
        """`lenient`: fields that would be refused are left out of the request, with a notice."""
        self._completer = completer
        self._parse = parse
        self._lenient = lenient

    async def answer(
        self, request: web.Request, raw: bytes, session: Session
    ) -> web.StreamResponse:
        """The response to a request with the body `raw`, sampled in the session."""
        body, digest, num_new = await self._read_body(session, raw)
        digest = blake2b(request.path.encode() + digest, digest_size=16).digest()
        attempt = _RequestAttempt(session, digest, _num_retries(request))
        session.begin_attempt(digest, num_retries=attempt.num_retries)
        fields = Fields(body, lenient=self._lenient)

        def read() -> ReplyWriter:
            reply = self._parse(fields, session)
            session.notes.keep_metadata(fields.metadata)
            return reply

        reply = await self._completer.large.run(num_new, read)
        for notice in fields.notices:
            session.notes.notice(notice)
        if attempt.num_retries and (kept := session.replies.find(digest)) is not None:
            return _replay(kept, stream=reply.stream)
        choices: list[Prepared] = []
        for asked in reply.requests:
            if policy := self._completer.names.policy_of(fields.text("model"), session.id):
                asked = replace(asked, policy=policy)
            prepared = await self._completer.prepare(
                session, asked, num_bytes=len(raw), num_new=num_new
            )
            choices += [prepared.as_choice(number) for number in range(asked.num_choices)]
        reply.begin(choices)
        try:
            return await self._respond(request, attempt, choices, reply)
        except ApiError as exc:  # it has a status of its own: the client's SDK may ask again
            attempt.may_forgive(exc)
            raise

    async def _read_body(self, session: Session, raw: bytes) -> tuple[Any, bytes, int]:
        """The body, its digest, and the weight of its new part, or 0 if that part is small.

        A body with a large new part is read as a whole, in a thread.
        """
        if is_small(len(raw)) or weight(raw, enough=_LARGE_BODY) <= _LARGE_BODY:
            return *session.body.read(raw, parse=self._parse_body), 0
        new = weight(raw[len(raw) - session.body.num_new(raw) :], enough=_LARGE_BODY)
        if new <= _LARGE_BODY:
            return *session.body.read(raw, parse=self._parse_body), 0
        body, digest = await self._completer.large.run(
            new, lambda: (self._parse_body(raw), blake2b(raw, digest_size=16).digest())
        )
        return body, digest, new

    def _parse_body(self, raw: bytes) -> Any:
        return parse_body(raw, most=self._completer.most_values)

    async def _respond(
        self,
        request: web.Request,
        attempt: "_RequestAttempt",
        choices: Sequence[Prepared],
        reply: ReplyWriter,
    ) -> web.StreamResponse:
        if reply.stream:
            events = self._events(attempt, choices, reply)
            return await send_events(
                request,
                events,
                write_error=reply.error_event,
                errors=self._completer.metrics.errors,
            )
        with attempt.owed():
            completed = await self._complete(attempt.session, choices, reply)
            body = orjson.dumps(reply.body(completed))
        attempt.answered(body)
        return web.Response(body=body, content_type="application/json")

    async def _complete(
        self, session: Session, choices: Sequence[Prepared], reply: ReplyWriter
    ) -> list[Completed]:
        done: dict[int, Completed] = {}
        async with aclosing(run_choices(self._completer, session, choices)) as deltas:
            async for choice, delta in deltas:
                if isinstance(delta, Completed):
                    done[choice] = delta
                    session.replies.note(reply.id, delta.index, choice=choice)
                else:
                    reply.observe(choice, delta)
        return [done[choice] for choice in sorted(done)]

    async def _events(
        self, attempt: "_RequestAttempt", choices: Sequence[Prepared], reply: ReplyWriter
    ) -> AsyncGenerator[bytes, None]:
        """The events of the whole stream. An error in its middle cannot be forgiven, because half of the answer was
        read."""
        session = attempt.session
        done: dict[int, Completed] = {}
        sent: list[bytes] = []

        def left(choice: int, record: RecordAbandoned) -> None:
            session.leave(
                AbandonedReply(attempt.digest, attempt.num_retries, reply.id, choice, record)
            )

        with attempt.owed(), session.replies.streaming(reply.id):
            running = run_choices(self._completer, session, choices, left=left)
            async with aclosing(running) as deltas:
                async for choice, delta in deltas:
                    if isinstance(delta, Completed):
                        done[choice] = delta
                        session.replies.note(reply.id, delta.index, choice=choice)
                    for event in reply.events(choice, delta):
                        sent.append(event)
                        yield event
            last = b"".join(reply.closing_events([done[choice] for choice in sorted(done)]))
        attempt.answered(b"".join(sent) + last)
        yield last


@dataclass(frozen=True, slots=True)
class _RequestAttempt:
    """One of the times that a client sends the same request."""

    session: Session
    digest: bytes
    """Digest of the request, equal for all attempts at it."""
    num_retries: int
    """Number of attempts before this one."""

    @contextmanager
    def owed(self) -> Iterator[None]:
        """Note that the request got no answer, if an error or its client ends it within this block. An infrastructure
        fault is noted once a request, however many choices it met."""
        try:
            with self.session.notes.noting_faults():
                yield
        except BaseException:
            self.session.replies.owe(self.digest)
            raise

    def answered(self, reply: bytes) -> None:
        self.session.answered(self.digest, reply, num_retries=self.num_retries)

    def may_forgive(self, error: ApiError) -> None:
        if error.fault is not None and error.retry:
            self.session.notes.may_forgive(error.fault, self.digest, num_retries=self.num_retries)


def _num_retries(request: web.Request) -> int:
    """The number of times that the SDK says it sent this request before and saw no answer."""
    count = request.headers.get("x-stainless-retry-count", "")
    return int(count) if re.fullmatch(r"[0-9]{1,9}", count) else 0


def _replay(kept: bytes, *, stream: bool) -> web.Response:
    kind = "text/event-stream" if stream else "application/json"
    return web.Response(body=kept, content_type=kind)
