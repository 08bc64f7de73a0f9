"""Finds the provider's key in an error text of the provider: as it is, encoded, or in part."""

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

_LEAST_KEY = 16
"""Number of characters of the shortest key that is masked. A shorter key, such as `EMPTY`, is a word that
answers may hold."""

_LEAST_PART = 8
"""Number of characters of the shortest part of a key that is masked."""

_MOST_ERROR_BYTES = 32_768
"""Maximum number of bytes of an error's body that are passed on: a longer body is cut."""

INSTEAD_OF_KEY = b"[the server's key]"


class Secret:
    """The server's key at a provider, and the forms in which a text may contain it.

    >>> secret = Secret("sk+prov/0123456789abcdef")
    >>> secret.masked_error(b'{"error": "no key sk+prov\\\\/0123456789"}')
    b'{"error":"no key [the server\\'s key]"}'
    """

    def __init__(self, key: str) -> None:
        self.plain = key.encode() if len(key) >= _LEAST_KEY else b""
        forms = [form.encode().lower() for form in _forms(key)] if self.plain else []
        self._parts = {
            form[at : at + _LEAST_PART]
            for form in forms
            for at in range(len(form) - _LEAST_PART + 1)
        }

    def is_in(self, text: str) -> bool:
        """Whether the text contains a part of the key."""
        return self._masked(raw := text.encode(errors="replace")) != raw

    def masked_error(self, body: bytes) -> bytes:
        """The body of an error without any part of the key. JSON stays JSON of the same shape."""
        if len(body) <= _MOST_ERROR_BYTES and self._parts:
            try:
                return orjson.dumps(self._masked_value(orjson.loads(body)))
            except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
                pass  # a text of its own
        return self._masked(body[:_MOST_ERROR_BYTES])

    def _masked_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._masked(value.encode()).decode()
        if isinstance(value, list):
            return [self._masked_value(item) for item in value]
        if isinstance(value, dict):
            return {self._masked_value(k): self._masked_value(v) for k, v in value.items()}
        return value

    def _masked(self, text: bytes) -> bytes:
        """The text with `INSTEAD_OF_KEY` in place of the key and of its parts."""
        if not self._parts:
            return text
        lowered, kept, done = text.lower(), bytearray(), 0
        for at in range(len(lowered) - _LEAST_PART + 1):
            if lowered[at : at + _LEAST_PART] in self._parts:
                if at > done or not kept.endswith(INSTEAD_OF_KEY):
                    kept += text[done:at] + INSTEAD_OF_KEY
                done = at + _LEAST_PART
        return bytes(kept + text[done:])


def _forms(key: str) -> Iterator[str]:
    """The key as it is, and as URLs, JSON and base64 write it."""
    yield key
    yield from (quote(key, safe=""), quote(key), quote_plus(key))
    yield from (json.dumps(key)[1:-1], key.replace("/", "\\/"))
    yield "".join(c if c.isalnum() else f"\\u{ord(c):04x}" for c in key)
    for shift in range(3):  # what comes before it decides how base64 cuts it
        padded = bytes(shift) + key.encode()
        whole = slice(4 if shift else 0, len(padded) // 3 * 4)
        yield base64.b64encode(padded).decode()[whole]
        yield base64.urlsafe_b64encode(padded).decode()[whole]
