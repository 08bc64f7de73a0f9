"""The contract of a wire format: read a request, and write its reply whole or as events."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import orjson

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.sampling.reader import Completed, Delta, Prepared
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.wire.fields import Fields


class ReplyWriter(Protocol):
    """One parsed request and the writer of its reply; used once."""

    id: str
    """The id that the client sees."""
    requests: Sequence[ChatRequest]
    """The requests to sample, one for each prompt. Each of them asks for `num_choices` choices."""
    stream: bool

    def begin(self, choices: Sequence[Prepared]) -> None:
        """Begin the reply: the prompts are known, and nothing is sampled yet."""

    def events(self, choice: int, delta: Delta) -> Iterable[bytes]:
        """Server-sent events for a delta of one choice. Called only when the reply streams."""
        ...

    def closing_events(self, completed: Sequence[Completed]) -> Iterable[bytes]: ...

    def error_event(self, error: ApiError) -> bytes: ...

    def observe(self, choice: int, delta: Delta) -> None:
        """Observe a delta; called instead of `events` when the reply does not stream."""

    def body(self, completed: Sequence[Completed]) -> dict[str, Any]: ...


ParseRequest = Callable[[Fields, Session], ReplyWriter]
"""Reads a request. Raises `ApiError` if the request cannot be honoured."""


def event(data: Any, *, name: str | None = None) -> bytes:
    """One server-sent event. JSON has no raw line breaks, so no text can end it early."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
