"""The replies of a session: their turns, and those that a client may not have received."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    """Number of attempts at that request before this one."""
    reply_id: str
    choice: int
    record: RecordAbandoned


class AbandonedReplies:
    """Replies whose clients left midway. The session's next request decides whether each is a turn.

    A user who stopped a reply asks something else or rewards it: the reply is a turn. An SDK whose connection broke
    repeats the request and counts a retry: nobody read the first reply, and only the answer to the retry is a turn.
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
        """The abandoned replies; each is returned once."""
        taken, self._left = self._left, []
        return taken


class SessionReplies:
    """The replies of one session. A retry of a request must not make a second turn."""

    def __init__(self, kept: KeptReplies, session: str) -> None:
        """`kept` are the replies of all sessions, among which `session` names this one."""
        self._kept = kept
        self._session = session
        self._turns_of: dict[str, dict[int, int]] = {}
        self._repeated: set[str] = set()
        self._streaming: dict[str, asyncio.Event] = {}
        self._left = AbandonedReplies()
        self._owed: Counter[bytes] = Counter()
        """Request bodies that met an error or lost their client, and were not sent again yet."""

    @property
    def turns_of(self) -> Mapping[str, Mapping[int, int]]:
        """The index of the turn of each choice, by the id of the reply. Clients know no more than that id."""
        return self._turns_of

    def note(self, reply_id: str, turn: int, *, choice: int = 0) -> None:
        """Remember that turn `turn` is this choice of the reply."""
        self._turns_of.setdefault(reply_id, {})[choice] = turn

    def note_repeated(self, reply_id: str) -> None:
        """Note that another provider gave this id to several replies, so that the id names none of them."""
        self._repeated.add(reply_id)

    def is_repeated(self, reply_id: str) -> bool:
        return reply_id in self._repeated

    def gave(self, reply_id: str) -> bool:
        """Whether that reply is one of this session's, or will be."""
        return reply_id in self._turns_of or reply_id in self._streaming or reply_id in self._left

    @contextmanager
    def streaming(self, reply_id: str) -> Iterator[None]:
        """Mark the reply as still being streamed, within this block."""
        over = self._streaming[reply_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._streaming[reply_id]
            over.set()

    def end_of_stream(self, reply_id: str) -> asyncio.Event | None:
        """The event that comes when the reply is over; None if it is not being streamed."""
        return self._streaming.get(reply_id)

    def owe(self, digest: bytes) -> None:
        """Note that a request with this body got no answer. Its retry must not get the answer of another request."""
        self._owed[digest] += 1

    def keep(self, digest: bytes, reply: bytes) -> None:
        """Keep the bytes of a whole answer, in case they are lost on the way."""
        self._kept.keep(self._session, digest, reply)

    def find(self, digest: bytes) -> bytes | None:
        """The earlier reply to the same request body: a retry must not sample a second turn."""
        if self._owed[digest]:
            self._owed[digest] -= 1
            return None
        return self._kept.find(self._session, digest)

    def leave(self, left: AbandonedReply) -> None:
        """Keep a reply whose client left. The next request makes the reply a turn, unless that request is a retry."""
        self._left.add(left)

    def asked_again(self, digest: bytes, *, num_retries: int) -> None:
        """Forget the abandoned replies to earlier attempts at this request."""
        self._left.asked_again(digest, num_retries=num_retries)

    def record_left(self) -> None:
        """Record abandoned replies as turns, since no retry of them came."""
        for left in self._left.take():
            self.note(left.reply_id, left.record(), choice=left.choice)
