"""The error that a route answers with, in the wire formats of OpenAI and Anthropic."""

from typing import Any

from areal_sdk.errors import ArealError

CONTEXT_OVERFLOW = "context_length_exceeded"
"""The code that agents look for when a prompt does not fit."""


class ApiError(ArealError):
    """A refusal that reaches the client as a well-formed error of its wire format."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry: bool | None = None,
        retry_after_s: float | None = None,
        fault: str | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry = retry
        """Whether a retry can help. A header tells this to the client, which by default retries 409 and 5xx."""
        self.retry_after_s = retry_after_s
        self.fault = fault
        """The infrastructure fault behind the error, as noted on the session."""
        self.allow = allow
        """The methods that the path takes, for an error with status 405."""

    @property
    def type(self) -> str:
        """OpenAI's `error.type` for this status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 403:
            return "permission_error"
        if self.status == 404:
            return "not_found_error"
        if self.status == 429:
            return "rate_limit_error"
        if self.status >= 500:
            return "server_error"
        return "invalid_request_error"

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        if self.allow:
            headers["Allow"] = self.allow
        return headers

    def openai_body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        kind = {
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            413: "request_too_large",
            429: "rate_limit_error",
            503: "overloaded_error",
        }.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        message = self.message
        if self.code == CONTEXT_OVERFLOW:
            message = f"prompt is too long: {message}"  # the words that its agents look for
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
