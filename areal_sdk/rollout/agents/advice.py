"""Cures for mistakes of many first agents, which the error's message brings."""

import re

from areal_sdk.types import Task

_CLIENT_ERRORS = (
    "OpenAIError|AnthropicError|APIConnectionError|AuthenticationError|PermissionDeniedError|"
    "NotFoundError|ConnectError"
)
_FROM_CLIENT = re.compile(rf"agent\b[^:]*: ({_CLIENT_ERRORS})\b")
_MISSING_KEY = re.compile(r"\bKeyError: '([\w.-]+)'")
_FLAGS = {"question": "--question-field COLUMN", "answer": "--answer-field COLUMN"}


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
