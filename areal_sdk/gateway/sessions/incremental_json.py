"""Parses the request bodies of one conversation, without parsing known messages again.

An agent sends the whole conversation with every turn. If a body begins with the same bytes as the last
body, up to the end of the last body's messages, these messages are the same. Only the rest is parsed.

A body is `head [ messages ] tail`. The messages are a valid JSON list by themselves. Head and tail are
valid JSON too, with a mark in place of the messages. A body of another shape, such as one that names
its messages twice, is parsed as a whole.
"""

import re
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import orjson

from areal_sdk.gateway.untrusted import loads

_OPENING = re.compile(rb'"messages"\s*:\s*\[')

_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{}]', re.DOTALL)
"""Pattern of a string or a bracket. A string without an end matches all the rest, so that nothing is read twice."""

_MARK = secrets.token_hex(16)
"""Stands for the messages; unguessable, so that no client can write it itself."""

_QUOTED_MARK = orjson.dumps(_MARK)


class IncrementalBody:
    """The last body of a session: how it began, and the messages in it."""

    def __init__(self) -> None:
        self._start = 0
        """Position in the body where the list of messages begins."""
        self._end = 0
        """Position in the body where the list ends, before the bracket; 0 if nothing is known."""
        self._beginning = b""
        """Digest of the body's bytes up to `_end`."""
        self._messages: list[Any] = []

    def num_new(self, raw: bytes) -> int:
        """Bytes that `read` would look at one by one."""
        known = blake2b(raw[: self._end], digest_size=16).digest() == self._beginning
        return len(raw) - self._end if known else len(raw)

    def read(self, raw: bytes, *, parse: Callable[[bytes], Any]) -> tuple[Any, bytes]:
        """The value of a body and the digest of its bytes.

        `parse` reads a body that cannot be taken apart, and raises if it is not JSON. Known messages are the same
        objects as before, so nobody may change them.
        """
        hasher = blake2b(raw[: self._end], digest_size=16)
        if not self._end or hasher.digest() != self._beginning:
            hasher = blake2b(digest_size=16)
            opening = _OPENING.search(raw)
            self._start = opening.end() if opening else 0
            self._end, self._messages = 0, []
        hashed = self._end
        body = self._read_parts(raw)
        if body is None:
            body, self._end = parse(raw), 0
        hasher.update(raw[hashed : self._end])
        self._beginning = hasher.digest()
        hasher.update(raw[max(hashed, self._end) :])
        return body, hasher.digest()

    def _read_parts(self, raw: bytes) -> Any | None:
        """The body put together from its parts; None if it does not consist of them."""
        position = self._end or self._start
        end = _end_of_list(raw, position) if position else 0
        if not end:
            return None
        before = b'[""' if self._end else b'["",'
        try:
            _, *added = loads(before + raw[position:end] + b"]")
            body = loads(raw[: self._start] + _QUOTED_MARK + raw[end:])
        except orjson.JSONDecodeError:
            return None
        if not isinstance(body, dict) or body.get("messages") != [_MARK]:
            return None
        self._end, self._messages = end, [*self._messages, *added]
        body["messages"] = self._messages
        return body


def _end_of_list(raw: bytes, position: int) -> int:
    """The end of the last item of the list around `position`; 0 if the list does not end."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(raw, position):
        character = raw[found.start()]
        if character in b"[{":
            depth += 1
        elif character in b"]}":
            if depth == 0:
                return position + len(raw[position : found.start()].rstrip())
            depth -= 1
    return 0
