"""Passes calls on to another provider and records their text.

The provider sends no tokens, so no policy gradient can use what is recorded here; `sft` and `dpo` can. Use
it to watch an agent that runs on another model, and to collect its episodes. Requests, replies and
streams pass unchanged.
"""

from contextlib import nullcontext
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from areal_sdk.errors import ConfigError
from areal_sdk.routes import (
    ApiError,
    Backend,
    BackendSettings,
    Call,
    RecordedCall,
    TextRecord,
)
from areal_sdk_upstream.provider import Provider, fault, is_refusal
from areal_sdk_upstream.reply import read_reply
from areal_sdk_upstream.request import read_request

SAMPLING_PATHS = ("chat/completions", "completions", "responses", "messages")
COUNTING_PATHS = ("responses/input_tokens", "messages/count_tokens")

REPLY_HEADER = "x-areal-reply"
"""Header that names the reply for `POST /v1/reward`, even if the provider's own ids repeat."""


def check_address(url: str) -> None:
    """Refuse text that is no address of a provider, and a key in the address, because addresses are shown and
    stored."""
    if "@" in url.removeprefix("http://").removeprefix("https://").split("/", 1)[0]:
        raise ConfigError(
            "upstream: an address takes no user and no password, for it is written to files; "
            "give the provider's key in AREAL_SDK_UPSTREAM_KEY"
        )
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"upstream = {url!r}: give an address, as in https://host/v1")


class UpstreamBackend(Backend):
    """Serves another provider's models. Callers use the gateway's keys; the backend uses the provider's."""

    def __init__(self, settings: BackendSettings) -> None:
        """The address ends in `/v1` as OpenAI's clients take it."""
        check_address(settings.address)
        self._provider = Provider(
            settings.address, api_key=settings.api_key, max_request_s=settings.max_request_s
        )

    async def start(self) -> None:
        await self._provider.start()

    async def aclose(self) -> None:
        await self._provider.aclose()

    async def answer(self, call: RecordedCall) -> web.StreamResponse:
        method, path = call.request.method, call.path
        if not _is_plain(path):
            raise ApiError(404, f"Invalid URL ({method} {call.request.path})", code="unknown_url")
        is_sampling = method == "POST" and path in SAMPLING_PATHS
        if not (is_sampling or _touches_nothing(method, path) or call.is_admin):
            raise ApiError(
                403,
                f"{method} /v1/{path} takes the server's admin key: other keys sample, count "
                "tokens and look models up. What the provider keeps, it keeps for all users at once.",
                code="admin_only",
            )
        raw = await call.body()
        recording = call.recording(raw, read=read_request) if is_sampling else nullcontext()
        with recording as record:
            return await self._forward(call, raw, record)

    async def _forward(
        self, call: Call, raw: bytes, record: TextRecord | None
    ) -> web.StreamResponse:
        async with self._provider.asked(call.request, call.path, raw, record) as reply:
            headers = self._provider.headers_of(reply)
            if record is not None:
                headers[REPLY_HEADER] = record.reply_id
            is_stream = reply.content_type == "text/event-stream"
            if (record is None or is_stream) and not is_refusal(reply):
                response = web.StreamResponse(status=reply.status, headers=headers)
                return await self._stream(call, reply, response, record)
            answer = await self._provider.whole(reply, record)
            if record is not None and reply.status == 200:
                await _keep(record, answer, is_stream=False)
            return web.Response(body=answer, status=reply.status, headers=headers)

    async def _stream(
        self,
        call: Call,
        reply: aiohttp.ClientResponse,
        response: web.StreamResponse,
        record: TextRecord | None,
    ) -> web.StreamResponse:
        """Pass a reply on as it comes, and keep it. Events that break off end with an error event."""
        request = call.request
        await response.prepare(request)
        kept = bytearray()
        size = 0
        try:
            async for piece in self._provider.pieces(reply):
                size += len(piece)
                if record is not None and not self._provider.is_too_long(size):
                    kept += piece
                await response.write(piece)
        except (aiohttp.ClientPayloadError, TimeoutError):
            if record is None:
                if request.transport is not None:
                    request.transport.abort()  # its client must not take it for whole
                return response
            await response.write(
                call.error_event(fault(record, "the provider broke off its answer"))
            )
        finally:  # also of a client that left: what it has seen by then may be judged
            if record is not None and reply.status == 200:
                if size > len(kept):
                    record.miss_the_end(f"a streamed answer is over {self._provider.most_answer}")
                await _keep(record, bytes(kept), is_stream=True)
        await response.write_eof()
        return response


async def _keep(record: TextRecord, raw: bytes, *, is_stream: bool) -> None:
    await record.keep(lambda: read_reply(raw, is_stream=is_stream), size=len(raw))


def _is_plain(path: str) -> bool:
    """Whether no segment of the path is empty, `.` or `..`, which the provider may read differently."""
    return not any(segment in ("", ".", "..") for segment in unquote(path).split("/"))


def _touches_nothing(method: str, path: str) -> bool:
    """Whether a request costs nothing and reads nothing that the provider keeps for all users together."""
    if method == "POST":
        return path in COUNTING_PATHS
    return method == "GET" and path.split("/")[0] == "models"
