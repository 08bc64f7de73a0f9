"""A table from secrets to what they name. The time of a lookup says nothing about the secrets."""

import secrets
from hashlib import blake2b
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Keyring(Generic[_T]):
    """The owner of each secret.

    Kept by a digest that is keyed anew in every process, so that the time a lookup takes depends on
    bits that nobody can choose or predict, and the secrets themselves are not held here.

    >>> ring = Keyring()
    >>> ring.add("sk-1", "alice")
    >>> ring.find("sk-1"), ring.find("sk-2")
    ('alice', None)
    """

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._items: dict[bytes, _T] = {}

    def add(self, secret: str, item: _T) -> None:
        self._items[self.digest(secret)] = item

    def find(self, secret: str) -> _T | None:
        return self._items.get(self.digest(secret))

    def remove(self, secret: str) -> None:
        del self._items[self.digest(secret)]

    def digest(self, secret: str) -> bytes:
        """A digest that identifies a secret without giving it away."""
        return blake2b(
            secret.encode(errors="surrogatepass"), key=self._salt, digest_size=16
        ).digest()
