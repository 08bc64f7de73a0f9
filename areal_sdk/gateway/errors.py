"""The errors of the gateway's own routes."""

from areal_sdk.errors import ArealError
from areal_sdk.routes import CONTEXT_OVERFLOW as CONTEXT_OVERFLOW
from areal_sdk.routes import ApiError as ApiError


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
    """The error of a prompt that does not fit. Agents know its code, and shorten their history when they see it."""
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
    """The error of a reward that a command posts although reward functions judge its episode. That command may be a
    program that the model wrote."""
    return ApiError(
        409,
        f"{judges} alone judge this episode: post no reward, or leave the reward functions out.",
        code="judged_elsewhere",
        retry=False,
    )


def learning_ended() -> ApiError:
    """The error of a reward while the run writes its last weights: the server still answers, but trains no more."""
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
