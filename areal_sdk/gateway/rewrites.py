"""Tool calls that a client sends back as text, and what they mean.

smolagents writes an assistant's calls into its content, `Calling tools:` and a Python list, and their
results into user messages. The calls are still the ones that were sampled.
"""

import ast
import re
from typing import Any

import orjson

_CALLS_AS_TEXT = re.compile(r"(?P<text>.*?)\s*^Calling tools:\n(?P<calls>\[.*\])\s*", re.M | re.S)


def calls_in_text(content: str) -> tuple[str, list[dict[str, Any]]] | None:
    """The text and the calls of such a content; None for any other.

    >>> calls_in_text("Calling tools:\\n[{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}]")
    ('', [{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}])
    """
    if "Calling tools:\n" not in content:
        return None
    match = _CALLS_AS_TEXT.fullmatch(content)
    if match is None:
        return None
    try:
        calls = orjson.loads(orjson.dumps(ast.literal_eval(match["calls"])))
    except (SyntaxError, ValueError, TypeError):  # TypeError: Python that JSON cannot say
        return None
    if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
        return None
    return match["text"], calls
