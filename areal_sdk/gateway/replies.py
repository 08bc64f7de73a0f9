"""The latest replies, in case they are lost on the way: a retry must not sample a second turn."""

from collections import OrderedDict


class KeptReplies:
    """Replies of all sessions by request, as many as fit: a retry comes within seconds.

    >>> kept = KeptReplies(most_bytes=8)
    >>> kept.keep("a", b"request 1", b"reply"); kept.keep("b", b"request 2", b"reply")
    >>> kept.find("a", b"request 1"), kept.find("b", b"request 2")
    (None, b'reply')
    """

    def __init__(self, *, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._replies: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def keep(self, session: str, digest: bytes, reply: bytes) -> None:
        """`session`: a name that no other session ever has."""
        self._num_bytes += len(reply) - len(self._replies.pop((session, digest), b""))
        self._replies[session, digest] = reply
        while self._num_bytes > self._most_bytes:
            _, oldest = self._replies.popitem(last=False)
            self._num_bytes -= len(oldest)

    def find(self, session: str, digest: bytes) -> bytes | None:
        return self._replies.get((session, digest))
