"""Answers `/v1/chat/completions`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b

import orjson
from aiohttp import web

from areal_sdk.gateway.choices import run_choices
from areal_sdk.gateway.completion import Completer
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.reading import Completed, Prepared
from areal_sdk.gateway.sessions import Session
from areal_sdk.gateway.wire import chat
from areal_sdk.gateway.wire.http import parse_body, read_body
from areal_sdk.gateway.wire.sse import send_events


class ChatEndpoint:
    """Parses, samples, writes: whole or streamed."""

    def __init__(self, completer: Completer, *, model_name: str) -> None:
        self._completer = completer
        self._model_name = model_name

    async def answer(self, request: web.Request, session: Session) -> web.StreamResponse:
        raw = await read_body(request)
        call = chat.parse(parse_body(raw))
        digest = blake2b(raw, digest_size=16).digest()
        if is_retry(request) and (kept := session.kept_reply(digest)) is not None:
            return _replay(kept, stream=call.stream)
        prepared = self._completer.prepare(session, call.request)
        writer = chat.ChatWriter(call, model=self._model_name, tokenizer=self._completer.tokenizer)
        if call.stream:
            return await send_events(
                request,
                self._events(session, prepared, writer),
                write_error=_error_event,
                on_sent=lambda sent: session.keep_reply(digest, sent),
            )
        completed = await self._complete(session, prepared, writer)
        body = orjson.dumps(writer.response(completed))
        session.keep_reply(digest, body)
        return web.Response(body=body, content_type="application/json")

    async def _complete(
        self, session: Session, prepared: Prepared, writer: chat.ChatWriter
    ) -> list[Completed]:
        done: dict[int, Completed] = {}
        async with aclosing(run_choices(self._completer, session, prepared)) as choices:
            async for choice, delta in choices:
                if isinstance(delta, Completed):
                    done[choice] = delta
                else:
                    writer.observe(choice, delta)
        return [done[choice] for choice in sorted(done)]

    async def _events(
        self, session: Session, prepared: Prepared, writer: chat.ChatWriter
    ) -> AsyncGenerator[bytes, None]:
        done: dict[int, Completed] = {}
        opened: set[int] = set()
        async with aclosing(
            run_choices(self._completer, session, prepared, streams=True)
        ) as choices:
            async for choice, delta in choices:
                if choice not in opened:
                    opened.add(choice)
                    yield writer.opening_chunk(choice)
                if isinstance(delta, Completed):
                    done[choice] = delta
                yield writer.chunk(choice, delta)
        yield writer.closing_chunks([done[choice] for choice in sorted(done)])


def is_retry(request: web.Request) -> bool:
    """The SDK says that it sent this request before and saw no answer."""
    return request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def _replay(kept: bytes, *, stream: bool) -> web.Response:
    kind = "text/event-stream" if stream else "application/json"
    return web.Response(body=kept, content_type=kind)


def _error_event(error: ApiError) -> bytes:
    return b"data: " + orjson.dumps(error.openai_body()) + b"\n\n"
