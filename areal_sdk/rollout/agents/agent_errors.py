"""Errors of agents: how they name the agent, which failed connections are no fault of the agent, and cures.

The cures are for mistakes that people often make in their first agent.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from areal_sdk.errors import InfrastructureError
from areal_sdk.types import Task

_UNCONNECTED = ("ConnectError", "ConnectTimeout")
"""The errors of httpx, which the clients of `openai` and `anthropic` name as their cause."""
_CLIENT_ERRORS = (
    "OpenAIError|AnthropicError|APIConnectionError|AuthenticationError|PermissionDeniedError|"
    "NotFoundError|ConnectError"
)
_FROM_CLIENT = re.compile(rf"agent\b[^:]*: ({_CLIENT_ERRORS})\b")
_MISSING_KEY = re.compile(r"\bKeyError: '([\w.-]+)'")
_FLAGS = {"question": "--question-field COLUMN", "answer": "--answer-field COLUMN"}


def agent_name(agent: object) -> str:
    """The name of the agent in errors and logs."""
    name = getattr(agent, "name", None) or getattr(agent, "__name__", None)
    return name if isinstance(name, str) else type(agent).__name__


def agent_title(name: str) -> str:
    """The words with which errors name an agent, since a function is often just called `agent`.

    >>> agent_title("Calculator"), agent_title("agent")
    ('agent Calculator', 'agent')
    """
    return name if name == "agent" else f"agent {name}"


def with_advice(message: str, task: Task, *, has_called: bool) -> str:
    """The message of an error, with a possible cure. `has_called` says whether a call of the episode reached the model.

    >>> task = Task("7", {"problem": "1+1?", "solution": "2"})
    >>> with_advice("agent A: KeyError: 'question' (a.py:8)", task, has_called=False)
    "agent A: KeyError: 'question' (a.py:8); task.data has: problem, solution; to rename one: --question-field COLUMN"
    >>> with_advice("agent A: APIConnectionError: Connection error.", task, has_called=False)
    'agent A: APIConnectionError: Connection error.; no call reached the model: give the client base_url=context.base_url and api_key=context.api_key'
    """
    missing = _MISSING_KEY.search(message)
    if missing and (key := missing[1]) not in task.data:
        has = ", ".join(map(str, task.data)) or "nothing"
        flag = _FLAGS.get(key, f"--set fields.{key}=COLUMN")
        return f"{message}; task.data has: {has:.300}; to rename one: {flag}"
    if not has_called and _FROM_CLIENT.match(message):
        return (
            f"{message}; no call reached the model: give the client base_url=context.base_url and "
            "api_key=context.api_key"
        )
    return message


@contextmanager
def unconnected_is_infrastructure(base_url: str, what: str) -> Iterator[None]:
    """Raise InfrastructureError if `what` raised because the gateway at `base_url` took no connection."""
    try:
        yield
    except Exception as exc:
        gateway, cause = urlsplit(base_url).netloc, _unconnected(exc)
        if cause is None or urlsplit(str(cause.request.url)).netloc != gateway:
            raise
        raise InfrastructureError(
            f"{what}: the gateway at {gateway} took no connection ({type(cause).__name__}); pass "
            "context.http_client to the client: it waits as long as the episode may"
        ) from exc


def _unconnected(error: BaseException | None) -> Any:
    """The httpx error of a failed connection that caused `error`; None if there is none."""
    while error is not None:
        if type(error).__name__ in _UNCONNECTED and hasattr(error, "request"):
            return error
        error = error.__cause__
    return None
