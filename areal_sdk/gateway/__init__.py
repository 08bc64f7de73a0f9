"""The OpenAI-compatible gateway: any client in, exact tokens recorded."""

from typing import TYPE_CHECKING, Any

from areal_sdk.gateway.errors import ApiError, SessionClosedError
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.sessions.session import Session, SessionLimits
from areal_sdk.gateway.sessions.store import SessionStore

if TYPE_CHECKING:
    from areal_sdk.gateway.app import Gateway

__all__ = [
    "ApiError",
    "Gateway",
    "SamplingPolicy",
    "Session",
    "SessionClosedError",
    "SessionLimits",
    "SessionStore",
]


def __getattr__(name: str) -> Any:
    """Import `Gateway` on first use: it brings the web server, and agents in workers need only `ApiError`."""
    if name == "Gateway":
        from areal_sdk.gateway.app import Gateway

        return Gateway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
