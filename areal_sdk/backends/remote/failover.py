"""One request over several attempts: the tokens recorded so far, and the request to the next server."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from areal_sdk.backends.remote.client import Delta
from areal_sdk.engine import EngineInfo, GenerateRequest
from areal_sdk.errors import ContextOverflowError
from areal_sdk.types import FinishReason

Decode = Callable[[list[int]], str]


@dataclass(slots=True)
class ResumableRequest:
    """A request that continues on another server. Tokens that were handed out are final: the next attempt's prompt
    ends with them."""

    request: GenerateRequest
    decode: Decode
    """Token ids to text, special tokens included; used only for stop strings over a boundary."""
    sampled: list[int] = field(default_factory=list)
    num_stale_kv: int = 0
    num_cached: int = 0
    num_attempts: int = 0
    _attempt_began_at: int = 0

    @property
    def budget(self) -> int:
        return self.request.max_new_tokens - len(self.sampled)

    def begin_attempt(self) -> None:
        self.num_attempts += 1
        self._attempt_began_at = len(self.sampled)

    def add(self, delta: Delta) -> Delta:
        """Record a delta. It comes back shorter, and final, if a stop is found that the server did not see."""
        cut = self._cut_at_stop(delta)
        self.sampled += cut.tokens
        self.num_stale_kv += cut.num_stale_kv
        if self.num_attempts == 1:
            self.num_cached = cut.num_cached
        return replace(cut, num_cached=self.num_cached)

    def _cut_at_stop(self, delta: Delta) -> Delta:
        """Cut the delta at the first stop that the server could not see by itself: see the two searches below."""
        stops = [stop for stop in (self._stop_token(delta), self._stop_string(delta)) if stop]
        if not stops:
            return delta
        end, matched = min(stops, key=lambda stop: stop[0])
        return replace(
            delta,
            tokens=delta.tokens[:end],
            logprobs=delta.logprobs[:end],
            versions=delta.versions[:end],
            top_logprobs=delta.top_logprobs[:end],
            finish_reason=FinishReason.STOP,
            stop_matched=matched,
        )

    def _stop_token(self, delta: Delta) -> tuple[int, int] | None:
        """The place of a stop token of the request: under `ignore_eos` a server may ignore these tokens too."""
        if not self.request.ignore_eos:
            return None
        wanted = self.request.stop_tokens
        found = (i for i, token in enumerate(delta.tokens) if token in wanted)
        index = next(found, None)
        return None if index is None else (index + 1, delta.tokens[index])

    def _stop_string(self, delta: Delta) -> tuple[int, str] | None:
        """The place of a stop string that began in an earlier attempt, so that no server saw all of it."""
        stop, began_at = self.request.stop, self._attempt_began_at
        if not stop or began_at == 0:
            return None
        window = max(len(text.encode()) for text in stop) + 4
        for index in range(len(delta.tokens)):
            if len(self.sampled) + index - began_at >= window:
                break  # everything a stop string could span is this attempt's own
            text = self.decode([*self.sampled, *delta.tokens[: index + 1]][-window:])
            matches = [(text.find(candidate), candidate) for candidate in stop if candidate in text]
            if matches:
                return index + 1, min(matches)[1]
        return None


def fitted(request: GenerateRequest, info: EngineInfo, *, reserved_tokens: int) -> GenerateRequest:
    """The request with its budget cut to the context. A request that no server could serve is refused with the cure.
    `reserved_tokens` of the context belong to the server."""
    room = info.max_context - len(request.tokens) - reserved_tokens
    if room < 1:
        raise ContextOverflowError(
            prompt_tokens=len(request.tokens), max_context=info.max_context - reserved_tokens
        )
    info.check_tokens(request)
    return replace(request, max_new_tokens=min(request.max_new_tokens, room))
