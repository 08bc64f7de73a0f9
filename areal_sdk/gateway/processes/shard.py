"""The owner of a session among several gateway processes. Every name of a session tells its owner, and the replacement of
a process that died knows the sessions that were lost with it."""

import mmap
import os
import re
import secrets
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

_KEY = re.compile(r"sk-p([0-9]+)-[A-Za-z0-9_-]+")
_SLUG = re.compile(r"[A-Za-z0-9._-]*~p([0-9]+)-[0-9a-f]+")
_REPLY = re.compile(r"[a-z]+[-_]p([0-9]+)-[0-9a-f]+")


class Shard:
    """One of `size` processes that serve at one address. All agree on who owns what.

    Keys, addresses and replies that a process makes up carry the number of the process. A caller chooses
    other names, and their hash tells the owner.

    >>> shard = Shard(1, 4)
    >>> shard.mark, shard.of_key("sk-p3-secret"), shard.of_key("sk-a-users-own-key")
    ('p1-', 3, None)
    >>> shard.of_session(shard.new_session_id("live-"))
    1
    """

    def __init__(self, number: int = 0, size: int = 1, *, users: Collection[str] = ()) -> None:
        """`users` holds the names of all accounts; accounts that are added later appear in it."""
        self.number = number
        self.size = size
        self.users = users
        self.mark = f"p{number}-" if size > 1 else ""
        """The text that marks every name that this process makes up; empty for a lone process."""

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def of_session(self, session_id: str) -> int:
        """The owner of a session by its id. Siblings of a group (`GROUP/0`, `GROUP/1`, ...) have one owner."""
        group, _, number = session_id.rpartition("/")
        if group and group not in self.users and number.isdecimal():
            session_id = group
        return crc32(session_id.encode(errors="surrogatepass")) % self.size

    def of_group(self, group: str) -> int:
        return self.of_session(f"{group}/0")

    def of_key(self, key: str) -> int | None:
        """The owner of the session whose own key this is; None for other keys."""
        return self._marked(_KEY, key)

    def of_slug(self, slug: str) -> int | None:
        """The owner of the session whose own address this is; None for a name that a caller chose."""
        return self._marked(_SLUG, slug)

    def of_reply(self, reply_id: str) -> int | None:
        return self._marked(_REPLY, reply_id)

    def new_session_id(self, prefix: str) -> str:
        """A new id for a session of this process."""
        while True:
            session_id = f"{prefix}{secrets.token_hex(8)}"
            if self.of_session(session_id) == self.number:
                return session_id

    def is_name_of_user(self, name: str) -> bool:
        return name in self.users

    def _marked(self, pattern: re.Pattern[str], name: str) -> int | None:
        found = pattern.fullmatch(name)
        number = int(found[1]) if found is not None else self.size
        return number if number < self.size else None


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
