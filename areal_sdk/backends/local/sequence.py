"""One request on its way through the engine.

The module also decides when a request is finished: stop tokens, stop strings, length.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from areal_sdk.backends.local.drafts import Guesser
from areal_sdk.backends.local.forward.kv_cache import Tokens
from areal_sdk.backends.local.sampling import SamplerRow
from areal_sdk.types import FinishReason


class TokenDecoder(Protocol):
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
    detokenizer: TokenDecoder | None = None
    """Decoder of the output, needed for `strings`."""

    def check(self, output: list[int]) -> Finish | None:
        """The end of `output`, whose last token is new; None if the output goes on."""
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


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt, output so far, and how much of both has its KV computed."""

    prompt: Tokens
    row: SamplerRow
    stop: StopRule
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Number of leading tokens whose KV is in the sequence's row."""
    is_placed: bool = False
    """Whether reusable KV was looked for; until then the row is empty."""
    num_cached: int = 0
    """Number of prompt tokens whose KV another request had computed."""
    stale_from: int | None = None
    """First output token that was sampled on KV of older weights (`kv_on_update="keep"`)."""
    came_at: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0
    """Seconds of the first wait for a row."""
    guesser: Guesser | None = None
    """The source of drafts; None until the first token is sampled, and for a request that gets none."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def max_tokens(self) -> int:
        """The largest length that the sequence can reach."""
        return len(self.prompt) + self.stop.max_new_tokens

    @property
    def num_pending(self) -> int:
        """Number of tokens whose KV is missing; at least one, the newest."""
        return self.num_tokens - self.num_computed

    @property
    def num_stale(self) -> int:
        return 0 if self.stale_from is None else len(self.output) - self.stale_from

    def tokens(self) -> Tokens:
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, dtype=np.int32)])

    def forget_kv(self) -> None:
        """Have everything computed again, from the prompt on."""
        self.num_computed = 0
        self.is_placed = False
