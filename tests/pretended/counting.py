"""What a program asked of the device meanwhile: launches, waits, copies, each with the line that asked."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
OWN = (f"{ROOT}/areal_sdk/",)
"""Files whose lines are named. A backward pass of torch's own has none."""
ELSEWHERE = "(torch)"


class Kind(StrEnum):
    LAUNCH = "launch"
    READ = "read"
    """The host waits for values."""
    UPLOAD = "upload"
    """The host waits until its values are on the device."""
    SENT = "sent"
    """A copy to the device that the host does not wait for."""
    SUM = "sum"
    """A collective."""


WAITS = (Kind.READ, Kind.UPLOAD)


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of request of one line."""

    kind: Kind
    place: str
    """`areal_sdk/FILE:LINE FUNCTION`."""
    operator: str


@dataclass(slots=True)
class Seen:
    """Requests and how often they came, and the bytes that went to or from the device."""

    counts: Counter[Request] = field(default_factory=Counter)
    num_bytes: Counter[Request] = field(default_factory=Counter)

    @property
    def num_launches(self) -> int:
        return self._total(Kind.LAUNCH)

    @property
    def num_waits(self) -> int:
        return self._total(*WAITS)

    @property
    def num_copied(self) -> int:
        """Bytes that went to or from the device."""
        return sum(n for request, n in self.num_bytes.items() if request.kind is not Kind.LAUNCH)

    def _total(self, *kinds: Kind) -> int:
        return sum(n for request, n in self.counts.items() if request.kind in kinds)

    def places(self, *kinds: Kind) -> Counter[str]:
        """How often each line made a request of these kinds."""
        found: Counter[str] = Counter()
        for request, count in self.counts.items():
            if request.kind in kinds:
                found[request.place] += count
        return found

    def report(self) -> str:
        """Every line that made the host wait or copied, and the commonest launches: for a failed test."""
        lines = [f"{self.num_launches} launches, {self.num_waits} waits, {self.num_copied} bytes"]
        for request, count in self.counts.most_common():
            if request.kind is not Kind.LAUNCH:
                size = self.num_bytes[request]
                lines.append(
                    f"{count:6} {request.kind:7} {request.operator:24} {size:9} B  {request.place}"
                )
        launches = self.places(Kind.LAUNCH).most_common(12)
        return "\n".join([*lines, *(f"{count:6} launches {place}" for place, count in launches)])


_watching: list[Seen] = []


@contextmanager
def watch() -> Iterator[Seen]:
    """Everything that all threads of this process ask of the device meanwhile."""
    seen = Seen()
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def note(kind: Kind, operator: str, num_bytes: int = 0) -> None:
    """Count a request of the line that runs now."""
    if not _watching:
        return
    request = Request(kind, _place(sys._getframe(1)), operator)
    for seen in _watching:
        seen.counts[request] += 1
        seen.num_bytes[request] += num_bytes


def _place(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OWN):
            return f"{file[len(str(ROOT)) + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ELSEWHERE
