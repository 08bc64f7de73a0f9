"""The OpenAI-compatible gateway: any client in, exact tokens recorded."""

from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.request import SamplingPolicy
from areal_sdk.gateway.session import Session, SessionClosedError, SessionLimits
from areal_sdk.gateway.sessions import SessionStore

__all__ = [
    "ApiError",
    "Gateway",
    "SamplingPolicy",
    "Session",
    "SessionClosedError",
    "SessionLimits",
    "SessionStore",
]
