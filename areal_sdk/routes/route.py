"""A route of the gateway, a backend in place of the model, and the calls that both answer.

The gateway finds the caller of each call first: a call without a valid key gets a 401 and never arrives here. An
`ApiError` that is raised becomes an error of the caller's wire format; any other exception becomes a 500 without
details. `aiohttp.web` has the requests and the responses.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_sdk.routes.errors import ApiError
from areal_sdk.routes.text import TextRecord, TextRequest

if TYPE_CHECKING:
    from aiohttp import web


class Call(ABC):
    """One request to a route, from a caller whom the gateway knows."""

    request: "web.Request"
    run_dir: Path | None = None
    """The run directory that gets the sessions of callers; None if the server keeps none."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The path below `/v1`, without a slash at its beginning."""

    @property
    @abstractmethod
    def is_admin(self) -> bool:
        """Whether the caller has the server's admin key."""

    @property
    @abstractmethod
    def user(self) -> str:
        """The user whose key the caller has, `admin` for the admin key. Empty for a caller with a session's own key,
        which speaks for that session alone."""

    @abstractmethod
    async def body(self) -> bytes:
        """The body of the request. `ApiError` if it is compressed, too long or too slow."""

    @abstractmethod
    def error_event(self, error: ApiError) -> bytes:
        """The error as the last event of a stream, in the caller's wire format."""


class RecordedCall(Call):
    """A call to a backend. The caller's session can keep it as a turn."""

    @abstractmethod
    def recording(
        self, raw: bytes, *, read: Callable[[Any], TextRequest]
    ) -> AbstractContextManager[TextRecord]:
        """Begin a turn of the caller's session with the body `raw`. The turn counts against limits and quotas.

        `read` turns the JSON of the body into a request. It is called when the answer is there, perhaps in a thread.
        """


@dataclass(frozen=True, slots=True)
class Route:
    """One route that each gateway of a model serves, registered with `register_routes`. Its calls count against the
    quotas of their callers."""

    method: str
    path: str
    """The path below `/v1`, as aiohttp takes it: `rerank`, `rerank/{id}`."""
    answer: "Callable[[Call], Awaitable[web.StreamResponse]]"
    beside_backends: bool = False
    """Whether a gateway with a backend has the route too. The backend then gets no such calls."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The settings that a backend is made from."""

    address: str
    """The value of `serve.upstream`."""
    api_key: str = field(default="", repr=False)
    """The key for the provider, from the environment. It must be in no message, answer or file."""
    max_request_s: float = 600.0
    """Deadline of one call, `rollout.request_timeout_s`."""


class Backend(ABC):
    """Answers all calls below `/v1` in place of a model, but those by which callers reward and end sessions.

    Registered with `register_backends`, as a function of `BackendSettings`. The function must be cheap, and raise
    `ConfigError` for an address that it cannot use: nothing has been written by then.
    """

    async def start(self) -> None:  # noqa: B027 - optional
        """Open what calls need. It is called in the event loop, before the first call."""

    async def aclose(self) -> None:  # noqa: B027 - optional
        """Close what `start` opened. No call runs any more."""

    @abstractmethod
    async def answer(self, call: RecordedCall) -> "web.StreamResponse":
        """Answer one call, of any method and path. It is cancelled if the client leaves."""
