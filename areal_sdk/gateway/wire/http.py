"""Reads bodies, and writes errors and events, for all endpoints.

Server-sent events are written as they come, together if several wait. If none come, the connection is kept alive.
"""

import asyncio
import codecs
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import orjson
from aiohttp import hdrs, web

from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.untrusted import LARGE, has_more_values, loads
from areal_sdk.routes import without_surrogates

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024

_LEAST_LIMIT = 4 * 1024 * 1024
"""Smallest limit on a body, in bytes, however short the context is: tools, metadata and escapes need room too."""

_JSON_BYTES = 6
"""Bytes of one character that is written as an escape."""

MOST_VALUES = 1_000_000
"""Largest number of values in a body if the context of the model is not known."""

BODY_S = 120.0
"""Deadline for a whole request body."""

UNREAD_BODY_S = 10.0
"""Seconds for which a client may go on sending a body that was answered before it was read."""

_PAUSE_S = 0.02
"""Seconds between two reads, of about 256 kB each, from a body that was answered already. Nobody needs that body, so
other requests go first."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ErrorBody = Callable[[ApiError], dict[str, Any]]


def body_limit(max_context: int, most_characters_a_token: int | None) -> int:
    """Bytes of the longest body that may fit the context, however its text is written in JSON."""
    if most_characters_a_token is None:
        return MAX_BODY_BYTES
    longest = max_context * most_characters_a_token * _JSON_BYTES
    return max(_LEAST_LIMIT, min(longest, MAX_BODY_BYTES))


async def read_body(request: web.Request) -> bytes:
    """The body of a request. A body whose headers say that it is too long, or encoded, is refused before it is read."""
    refuse_body(request)
    try:
        if not request.content.is_eof():
            await asyncio.sleep(0)  # most bodies follow their head at once: no need of a deadline
        if request.content.is_eof():
            return await request.read()
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise _too_large(request) from exc
    except TimeoutError as exc:
        raise ApiError(
            408, f"The request body did not come within {BODY_S:g} s.", code="request_timeout"
        ) from exc


def refuse_body(request: web.Request) -> None:
    """Raise a 413 or 415 if the request says that its body is too long, or compressed.

    No SDK compresses its requests. 2 MB of gzip may be 2 GB of text, and the parser would unpack them in the loop.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise _too_large(request)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            "The request body has a Content-Encoding, and this server reads none: send the JSON as it is.",
            code="unsupported_encoding",
        )


def _too_large(request: web.Request) -> ApiError:
    return ApiError(
        413,
        f"The request body is over {request.client_max_size / 2**20:.3g} MiB, which is more than the "
        "model's context can hold: send less.",
        code="request_too_large",
    )


def parse_body(raw: bytes, *, most: int = MOST_VALUES) -> Any:
    """The JSON of a body of up to `most` values.

    Halves of a surrogate pair, which orjson refuses, are replaced.
    """
    if len(raw) > LARGE and has_more_values(raw, most):
        raise ApiError(
            413,
            f"The request body holds more than {most:,} values (objects, lists and what is in them), which "
            "is more than the model's context can hold: send fewer.",
            code="request_too_large",
        )
    try:
        return loads(raw)
    except orjson.JSONDecodeError as exc:
        wrong = exc.args[0]
    if raw.startswith(codecs.BOM_UTF8):
        wrong = "it begins with a byte order mark (BOM, EF BB BF): send the JSON without it"
    elif b"\\u" in raw:
        try:
            return loads(json.dumps(without_surrogates(json.loads(raw))))
        except RecursionError:
            wrong = "it is nested too deep"
        except orjson.JSONDecodeError as exc:
            wrong = exc.args[0]
        except ValueError:
            pass
    raise bad_request(f"We could not parse the JSON body of your request: {wrong}")


def guarded(
    handler: Handler, *, errors: Counter[str], error_body: ErrorBody = ApiError.openai_body
) -> Handler:
    """`handler`, with its errors written in the wire format. An unforeseen exception is a 500 without details."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as exc:
            errors[exc.code or exc.type] += 1
            if exc.fault is not None:
                logger.warning("%s: %s", _called(request), exc)
            response = json_response(error_body(exc), status=exc.status, headers=exc.headers())
        except Exception:
            errors["internal"] += 1
            logger.exception("%s failed", _called(request))
            error = ApiError(500, "The gateway failed; its log has the details.", retry=False)
            response = json_response(error_body(error), status=500, headers=error.headers())
        if not request.content.is_eof():
            await _send_and_discard(request, response)
        return response

    return answer


def _called(request: web.Request) -> str:
    """The call as the log shows it: its route, not its path, which may hold a session's address, and so a key."""
    resource = request.match_info.route.resource
    return f"{request.method} {resource.canonical if resource is not None else 'an unknown path'}"


async def _send_and_discard(request: web.Request, response: web.Response) -> None:
    """Answer, then read the rest of the body slowly, throw it away, and close the connection.

    Most clients stop when they see the answer. Some read nothing before they have sent everything: if the connection
    broke first, they would see the break and not the answer.
    """
    response.force_close()
    await response.prepare(request)
    await response.write_eof()
    await discard_body(request)


async def discard_body(request: web.Request) -> None:
    """Throw away what still comes of a body that was answered, for up to `UNREAD_BODY_S`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_BODY_S):
            while not request.content.is_eof():
                await request.content.readany()
                await asyncio.sleep(_PAUSE_S)
    if not request.content.is_eof() and request.transport is not None:
        request.transport.abort()


def json_response(
    body: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )


async def not_found(request: web.Request) -> web.StreamResponse:
    """A 404 for a path that the gateway does not serve, a 405 for one that it serves to another method."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        allowed |= (await resource.resolve(request))[1] - {hdrs.METH_ANY}
    if allowed and request.method not in allowed:
        methods = ", ".join(sorted(allowed))
        raise ApiError(
            405,
            f"{request.path} takes {methods}, not {request.method}.",
            code="method_not_allowed",
            allow=methods,
        )
    raise ApiError(404, f"Invalid URL ({request.method} {request.path})", code="unknown_url")


KEEP_ALIVE_S = 15.0
"""Seconds without a token after which a stream sends a comment, so that no proxy closes it."""

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def send_events(
    request: web.Request,
    events: AsyncGenerator[bytes, None],
    *,
    write_error: Callable[[ApiError], bytes],
    errors: Counter[str],
    keep_alive: bytes = b": keep-alive\n\n",
) -> web.StreamResponse:
    """Send `events` as the response to `request`.

    Nothing is sent before the first event. So an error that comes before it is raised here and sets the status of the
    response. A later error is sent as the last event, logged, and counted in `errors`.
    """
    feed = _Feed(events)
    task = asyncio.create_task(feed.pump())
    response = web.StreamResponse(headers=_HEADERS)
    try:
        is_last = False
        while not is_last:
            data = await feed.take(KEEP_ALIVE_S)
            is_last = feed.is_over  # asked here: while this is written, more may come
            if feed.error is not None:
                if not data and not response.prepared:
                    raise feed.error
                error = as_api_error(feed.error)
                errors[error.code or "internal"] += 1
                logger.warning("%s broke off: %s", _called(request), error)
                data += write_error(error)
            elif not data and not is_last:
                data = keep_alive
            if not response.prepared:
                await response.prepare(request)
            await (response.write_eof(data) if is_last else response.write(data))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return response


def as_api_error(error: Exception) -> ApiError:
    """The error as the client may see it. Details of an unforeseen exception go to the log alone."""
    if isinstance(error, ApiError):
        return error
    logger.error("a stream failed", exc_info=error)
    return ApiError(500, "The gateway failed; its log has the details.", retry=False)


class _Feed:
    """Events that wait to be written."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self.error: Exception | None = None
        self.is_over = False
        self._events = events
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()

    async def pump(self) -> None:
        """Take events from the source as fast as it gives them."""
        try:
            async with aclosing(self._events):
                async for event in self._events:
                    self._waiting.append(event)
                    self._news.set()
        except Exception as exc:  # noqa: BLE001 - handed over to the response's own task
            self.error = exc
        finally:
            self.is_over = True
            self._news.set()

    async def take(self, timeout_s: float) -> bytes:
        """The chunks that have come since the last call; empty after `timeout_s` of silence or at the end."""
        with suppress(TimeoutError):  # what came with it is taken all the same
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        waiting, self._waiting = b"".join(self._waiting), []
        return waiting
