"""The sessions that a process opened, as its replacement remembers them after it died."""

import mmap
import os
from hashlib import blake2b
from pathlib import Path

_DIGEST = 16
_MOST = 65_536
"""Maximum number of names that are kept. A session has three: its id, its key and its address."""


class Claims:
    """The latest names of sessions of one shard, as digests in a file that survives the process.

    Sessions are lost with their process. Without the claims, a caller who continues a lost session would get a new
    one of the same name, whose episode would lack its beginning.
    """

    def __init__(self, path: Path, *, secret: bytes) -> None:
        """`secret` is known to the processes of one server alone, so that the file gives no name away."""
        self._secret = secret
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, (_MOST + 1) * _DIGEST)
            self._file = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._count = int.from_bytes(self._file[:8], "little")
        self._lost = frozenset(
            self._file[i * _DIGEST : (i + 1) * _DIGEST]
            for i in range(1, min(self._count, _MOST) + 1)
        )

    def add(self, *names: str) -> None:
        """Note that a session with these names opens."""
        for name in names:
            at = (self._count % _MOST + 1) * _DIGEST
            self._file[at : at + _DIGEST] = self._digest(name)
            self._count += 1
        self._file[:8] = self._count.to_bytes(8, "little")

    def is_lost(self, name: str) -> bool:
        """Whether a process that died here had a session of that name."""
        return bool(self._lost) and self._digest(name) in self._lost

    def close(self) -> None:
        self._file.close()

    def _digest(self, name: str) -> bytes:
        return blake2b(
            name.encode(errors="surrogatepass"), key=self._secret, digest_size=_DIGEST
        ).digest()
