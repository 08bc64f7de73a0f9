"""Tool calls that a client sends back as text, and what they mean.

smolagents writes an assistant's calls into its content, `Calling tools:` and a Python list, and their
results into user messages. The calls are still the ones that were sampled. Its CodeAgent calls no tools:
it writes the code of a text once more, as a call.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from areal_sdk.gateway.untrusted import loads

_BEFORE_CALLS = re.compile(r"^Calling tools:\n(?=\[)", re.M)

_MOST_CHARACTERS = 100_000
"""A longer list is text: Python's own parser reads it, on the event loop."""


def calls_in_text(content: str) -> tuple[str, list[dict[str, Any]]] | None:
    """The text and the calls of such a content; None for any other.

    >>> calls_in_text("Calling tools:\\n[{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}]")
    ('', [{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}])
    """
    if "Calling tools:\n" not in content:
        return None
    found = _BEFORE_CALLS.search(content)
    if found is None:
        return None
    written = content[found.end() :].rstrip()
    if not written.endswith("]") or len(written) > _MOST_CHARACTERS:
        return None
    try:
        calls = loads(orjson.dumps(ast.literal_eval(written)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None  # TypeError: Python that JSON cannot say
    if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
        return None
    return content[: found.start()].rstrip(), calls


def repeats_code(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether CodeAgent wrote these calls: the text before them says all of it already.

    A tool that takes code has arguments with names; CodeAgent's call has the code alone.
    """
    if len(calls) != 1:
        return False
    function = calls[0]["function"]
    return function.get("name") == "python_interpreter" and isinstance(
        function.get("arguments"), str
    )
