"""When a request is finished: stop tokens, stop strings, length."""

from dataclasses import dataclass
from typing import Protocol

from areal_sdk.types import FinishReason


class Detokenizer(Protocol):
    """The one method we use of a `tokenizers.Tokenizer`."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    matched: str | int | None = None


@dataclass(frozen=True, slots=True)
class StopRule:
    max_new_tokens: int
    tokens: frozenset[int]
    strings: tuple[str, ...] = ()
    detokenizer: Detokenizer | None = None
    """Needed for `strings`."""

    def check(self, output: list[int]) -> Finish | None:
        """Whether `output`, whose last token is new, is complete."""
        if output[-1] in self.tokens:
            return Finish(FinishReason.STOP, output[-1])
        if self.strings and (found := self._matched_string(output)) is not None:
            return Finish(FinishReason.STOP, found)
        if len(output) >= self.max_new_tokens:
            return Finish(FinishReason.LENGTH)
        return None

    def _matched_string(self, output: list[int]) -> str | None:
        assert self.detokenizer is not None
        # Every token is at least one byte, so the longest stop string spans at most so many. Four
        # more keep a character that starts in the middle of its bytes away from the match.
        window = max(len(text.encode()) for text in self.strings) + 4
        tail = self.detokenizer.decode(output[-window:], skip_special_tokens=False)
        matches = [(tail.find(text), text) for text in self.strings if text in tail]
        return min(matches)[1] if matches else None
