"""Reads JSON that callers and models wrote, and refuses what could not be written again.

orjson reads 1024 levels and writes 254. A value that is deeper than `MAX_DEPTH` would fail later: in
a trace, in a prompt, in a digest of the history.
"""

from typing import Any

import orjson

MAX_DEPTH = 200
"""What is left to 254 is for the objects that we put around a caller's value."""

_WRITTEN_DEPTH = 254


def loads(text: bytes | str) -> Any:
    """The value; `orjson.JSONDecodeError` where it is not JSON or too deep.

    >>> loads("[1, 2]")
    [1, 2]
    """
    value = orjson.loads(text)
    opened = (
        text.count(b"[") + text.count(b"{")
        if isinstance(text, bytes)
        else text.count("[") + text.count("{")
    )
    if opened > MAX_DEPTH and is_too_deep(value):
        raise orjson.JSONDecodeError(f"it is nested deeper than {MAX_DEPTH} levels", "", 0)
    return value


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value has more than `MAX_DEPTH` levels."""
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False
