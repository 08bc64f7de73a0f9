"""The other provider. Requests carry the server's key; answers are bounded and never contain that key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp
from aiohttp import web

from areal_sdk.routes import ApiError, TextRecord
from areal_sdk_upstream.secret import INSTEAD_OF_KEY, Secret

_PASSED_ON = frozenset(
    {"content-type", "accept", "openai-beta", "anthropic-version", "anthropic-beta"}
)
"""Headers of a request that the provider sees. Others, such as those that name an organisation or a project,
would count there for the server's key, which all callers share."""

_PASSED_BACK = frozenset(
    {
        *("content-type", "retry-after", "x-should-retry", "x-request-id", "request-id"),
        *("openai-version", "openai-model", "openai-processing-ms"),
    }
)
_PASSED_BACK_BEGIN = ("x-ratelimit-", "anthropic-ratelimit-")

_MOST_ANSWER_BYTES = 32 * 1024 * 1024
"""Largest size in bytes of an answer that is read as a whole, and of a stream that is kept, after decoding."""


class Provider:
    """Asks one provider, with the server's own key."""

    def __init__(self, url: str, *, api_key: str, max_request_s: float) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._secret = Secret(api_key)
        self._timeout = aiohttp.ClientTimeout(total=max_request_s)
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        jar = aiohttp.DummyCookieJar()  # no cookies of one user's for another
        self._http = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=jar)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()

    @asynccontextmanager
    async def asked(
        self, request: web.Request, path: str, raw: bytes, record: TextRecord | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The provider's reply. A failure on the way is a fault, whose message names no key."""
        assert self._http is not None, "the server has started"
        headers = {name: v for name, v in request.headers.items() if _passes_on(name)}
        headers["Accept-Encoding"] = "identity"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
            if path.startswith("messages"):
                headers["x-api-key"] = self._api_key
        try:
            async with self._http.request(
                request.method,
                f"{self._url}/{quote(path)}",
                params=request.query,
                data=raw or None,
                headers=headers,
                allow_redirects=False,  # they would take the key elsewhere
            ) as reply:
                if reply.status in (401, 403):
                    raise fault(record, f"the provider answered {reply.status} to our key")
                yield reply
        except TimeoutError as exc:
            raise fault(record, "the provider did not answer in time", status=504) from exc
        except aiohttp.ClientError as exc:
            kind = type(exc).__name__
            raise fault(record, f"the provider cannot be reached ({kind})") from exc

    def headers_of(self, reply: aiohttp.ClientResponse) -> dict[str, str]:
        """The headers of a reply that its caller sees. None of them names the operator or holds the key."""
        return {
            name: value
            for name, value in reply.headers.items()
            if _passes_back(name) and not self._secret.is_in(value)
        }

    async def pieces(self, reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body of a reply as it comes, without the server's key, which an error may quote."""
        held = b""
        async for piece in reply.content.iter_any():
            data = held + piece
            if self._secret.plain:
                data = data.replace(self._secret.plain, INSTEAD_OF_KEY)
            end = len(data) - _num_begun(data, self._secret.plain)
            data, held = data[:end], data[end:]
            if data:
                yield data
        if held:
            yield held

    def is_too_long(self, size: int) -> bool:
        """Whether an answer of `size` bytes is too long to be kept."""
        return size > _MOST_ANSWER_BYTES

    @property
    def most_answer(self) -> str:
        """The size up to which an answer is kept, for messages."""
        return f"{_MOST_ANSWER_BYTES / 2**20:.3g} MiB"

    async def whole(self, reply: aiohttp.ClientResponse, record: TextRecord | None) -> bytes:
        """The body of a reply that is no stream. Raises a fault if the body is too long."""
        parts, size = list[bytes](), 0
        async for piece in self.pieces(reply):
            size += len(piece)
            if self.is_too_long(size):
                raise fault(record, f"the provider's answer is over {self.most_answer}")
            parts.append(piece)
        answer = b"".join(parts)
        return self._secret.masked_error(answer) if is_refusal(reply) else answer


def is_refusal(reply: aiohttp.ClientResponse) -> bool:
    """Whether the provider refused the request. The text of a refusal may contain the key in any form."""
    return reply.status >= 300


def fault(record: TextRecord | None, what: str, *, status: int = 502) -> ApiError:
    """The error of a failure of the provider, which is noted on the session."""
    if record is not None:
        record.fault(what)
    return ApiError(status, f"{what[0].upper()}{what[1:]}.", code="upstream_error")


def _passes_on(name: str) -> bool:
    return name.lower() in _PASSED_ON or name.lower().startswith("x-stainless-")


def _passes_back(name: str) -> bool:
    return name.lower() in _PASSED_BACK or name.lower().startswith(_PASSED_BACK_BEGIN)


def _num_begun(data: bytes, secret: bytes) -> int:
    """Bytes at the end of `data` that may be the beginning of the secret."""
    longest = min(len(secret) - 1, len(data))
    return next((n for n in range(longest, 0, -1) if data.endswith(secret[:n])), 0)
