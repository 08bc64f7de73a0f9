"""The contract of what a package adds to the gateway: a route, or a backend that answers in place of a model."""

from areal_sdk.routes.errors import CONTEXT_OVERFLOW, ApiError
from areal_sdk.routes.route import Backend, BackendSettings, Call, RecordedCall, Route
from areal_sdk.routes.text import TextChoice, TextRecord, TextReply, TextRequest, without_surrogates

__all__ = [
    "CONTEXT_OVERFLOW",
    "ApiError",
    "Backend",
    "BackendSettings",
    "Call",
    "RecordedCall",
    "Route",
    "TextChoice",
    "TextRecord",
    "TextReply",
    "TextRequest",
    "without_surrogates",
]
