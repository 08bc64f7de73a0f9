"""Replies that a client may not have received: a retry must not make a second turn."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


class KeptReplies:
    """The latest replies of all sessions, found by the digest of their request, up to a total size.

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
        """Keep a reply. `session` is a name that no other session ever has."""
        self._num_bytes += len(reply) - len(self._replies.pop((session, digest), b""))
        self._replies[session, digest] = reply
        while self._num_bytes > self._most_bytes:
            _, oldest = self._replies.popitem(last=False)
            self._num_bytes -= len(oldest)

    def find(self, session: str, digest: bytes) -> bytes | None:
        return self._replies.get((session, digest))


RecordAbandoned = Callable[[], int]
"""Makes a turn of what was sampled for a client that left, and returns its index."""


@dataclass(frozen=True, slots=True)
class AbandonedReply:
    """A choice of a streamed reply whose client left after some of it had come."""

    digest: bytes
    """Digest of the request."""
    num_retries: int
    """The attempts at that request before this one."""
    reply_id: str
    choice: int
    record: RecordAbandoned


class AbandonedReplies:
    """Replies whose clients left midway. The session's next request decides whether each is a turn.

    A user who stopped a reply asks something else or rewards it: the reply is a turn. An SDK whose
    connection broke repeats the request and counts a retry: nobody read the first reply, and only the
    answer to the retry is a turn.
    """

    def __init__(self) -> None:
        self._left: list[AbandonedReply] = []
        self._retries: dict[bytes, int] = {}
        """Requests that an SDK repeated, each with the number of the latest attempt."""

    def __contains__(self, reply_id: object) -> bool:
        return any(left.reply_id == reply_id for left in self._left)

    def add(self, left: AbandonedReply) -> None:
        if self._retries.get(left.digest, 0) <= left.num_retries:  # else the retry came before
            self._left.append(left)

    def asked_again(self, digest: bytes, *, num_retries: int) -> None:
        """Forget the earlier attempts at a request, of which its SDK counts `num_retries`."""
        if num_retries:
            self._retries[digest] = max(num_retries, self._retries.get(digest, 0))
            self._left = [
                left
                for left in self._left
                if left.digest != digest or left.num_retries >= num_retries
            ]

    def take(self) -> list[AbandonedReply]:
        """All of them, once."""
        taken, self._left = self._left, []
        return taken
