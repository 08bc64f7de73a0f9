"""The gateway's errors, and their form in the wire formats of OpenAI and Anthropic."""

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
        """Whether a retry can help. SDKs retry 409 and 5xx by default; a header tells them this."""
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


class SessionClosedError(ArealError):
    """A turn came after its session was closed: its episode is over."""


class TemplateRefusalError(ArealError, ValueError):
    """The model's chat template raised: it does not accept this conversation."""


class TooManyTokensError(ArealError):
    """A text has more tokens than its caller can use."""

    def __init__(self, num_tokens: int) -> None:
        """`num_tokens` is the number of tokens of the encoded part. The whole text has at least as many."""
        super().__init__(f"the text has at least {num_tokens} tokens")
        self.num_tokens = num_tokens


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The error of a request that is not accepted. The message names the field."""
    return ApiError(400, message, param=param, code=code)


def context_overflow(
    *, prompt_tokens: int, max_context: int, at_least: bool = False, param: str = "messages"
) -> ApiError:
    """The error of a prompt that does not fit. Agents shorten their history when they see exactly its code."""
    return ApiError(
        400,
        f"This model's maximum context length is {max_context} tokens. However, your messages "
        f"resulted in {'at least ' if at_least else ''}{prompt_tokens} tokens. Please reduce the length of the messages.",
        param=param,
        code=CONTEXT_OVERFLOW,
    )


def limit_reached(what: str) -> ApiError:
    """The error of a request beyond a limit of the episode. Reaching a limit is an outcome, so this is a 400, which
    no SDK retries."""
    return ApiError(400, f"The episode limit was reached: {what}.", code="episode_limit_reached")


def session_lost() -> ApiError:
    return ApiError(
        410,
        "This session was lost: the gateway process that held it died. Open a session of another name.",
        code="session_lost",
        retry=False,
    )


def gateway_lost() -> ApiError:
    """The error while the process that owns the session is gone, and another one is about to take its place."""
    return ApiError(
        503,
        "The gateway process that holds this session died: another one takes its place. Ask again.",
        code="gateway_lost",
        retry=True,
        retry_after_s=1.0,
    )


def session_closed() -> ApiError:
    return ApiError(
        409,
        "This session is closed: its episode is over and takes no more turns.",
        code="session_closed",
        retry=False,
    )


def episode_judged(what: str) -> ApiError:
    """The error of a reward that comes after the episode's final reward. A learner may have read the final reward
    already, so no later one replaces it."""
    return ApiError(
        409,
        f"The episode of {what} is over and has its reward, which is final.",
        code="episode_judged",
        retry=False,
    )


def judged_elsewhere(judges: str) -> ApiError:
    """The error of a reward that a command posts although reward functions judge its episode. A program
    that a model wrote could post it too."""
    return ApiError(
        409,
        f"{judges} alone judge this episode: post no reward, or leave the reward functions out.",
        code="judged_elsewhere",
        retry=False,
    )


def learning_ended() -> ApiError:
    """The error of a reward while the run writes its last weights: it still answers, but it trains no more."""
    return ApiError(
        503,
        "Learning has ended and the server is about to stop: this reward is not kept.",
        code="learning_ended",
        retry=False,
    )


def server_stopping() -> ApiError:
    """The error of a request that was still running when the server's time to finish requests was over."""
    return ApiError(
        503, "The server is stopping: this answer was not finished.", code="server_stopping"
    )
