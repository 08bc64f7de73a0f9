"""Cuts text at a stop string, however the text arrives."""

from collections.abc import Sequence


class StopFilter:
    """Passes text through up to the first stop string; holds back what may begin one.

    >>> stop = StopFilter(["END"])
    >>> stop.feed("one E"), stop.feed("ND two"), stop.matched
    ('one ', '', 'END')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        ends = [(at + len(s), s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if ends:
            end, self.matched = min(ends, key=lambda pair: (pair[0], -len(pair[1])))
            before, self._held = self._held[: end - len(self.matched)], ""
            return before
        ready = len(self._held) - max(_overlap(self._held, stop) for stop in self._stops)
        passed, self._held = self._held[:ready], self._held[ready:]
        return passed

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
