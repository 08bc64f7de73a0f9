"""Requests to an engine, the distribution that their tokens are drawn from, and the pieces of the answer."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from areal_sdk.errors import EngineError
from areal_sdk.types import Exclusion, FinishReason


def _number(default: float, least: float, most: float) -> Any:
    """A field that clients may set under the same name, to a number from `least` to `most`."""
    return field(default=default, metadata={"bounds": (least, most)})


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from: the policy's own, unless a field changes it.

    With its default no field changes the policy. A new setting needs a field here with its bounds for clients, a case in
    `exclusion`, and code in `backends/local/sampling.py`. Gateway, schemas and SGLang take the fields from here.
    """

    temperature: float = _number(1.0, 0.0, 2.0)
    """0.0 is greedy; the logprobs are then those of T = 1."""
    top_p: float = _number(1.0, 0.0, 1.0)
    top_k: int = 0
    """0: off."""
    min_p: float = _number(0.0, 0.0, 1.0)
    presence_penalty: float = _number(0.0, -2.0, 2.0)
    frequency_penalty: float = _number(0.0, -2.0, 2.0)
    repetition_penalty: float = _number(1.0, 0.01, 2.0)
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def cuts_tail(self) -> bool:
        """Whether unlikely tokens are never drawn."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def has_penalty(self) -> bool:
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    @property
    def exclusion(self) -> Exclusion | None:
        """The reason why tokens drawn this way do not follow log softmax(logits / T), as training assumes."""
        if self.is_greedy:
            return Exclusion.GREEDY
        if self.cuts_tail:
            return Exclusion.TRUNCATED_DISTRIBUTION
        if self.has_penalty:
            return Exclusion.PENALTY
        if self.logit_bias:
            return Exclusion.LOGIT_BIAS
        return None


SAMPLING_BOUNDS: Mapping[str, tuple[float, float]] = {
    item.name: item.metadata["bounds"] for item in fields(Sampling) if "bounds" in item.metadata
}
"""Bounds of the numbers of `Sampling`, for clients."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to sample. A client that asks for n choices causes n of these."""

    tokens: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Generation ends with the token that completes one of these; that token is still returned."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end the answer, besides the model's end tokens. With `ignore_eos` only these tokens end it."""
    ignore_eos: bool = False
    seed: int | None = None
    num_top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None
    """The JSON schema that the output must follow. An engine that cannot enforce the schema raises EngineError."""
    policy: str = ""
    """Name of the policy that samples, if the engine has several (`EngineInfo.policies`)."""
    session: str = ""
    """Session of the request. The requests of a session share a prefix: an engine serves them where its KV is."""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class GenerateChunk:
    """The tokens sampled since the last chunk. Only the final chunk has a finish reason."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_matched: str | int | None = None
    """The stop string or token that ended the output."""
    num_cached: int = 0
    """Prompt tokens whose KV was reused (final chunk)."""
    num_stale_kv: int = 0
    """Number of tokens at the end of the output that were sampled on KV of older weights (final chunk)."""
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    queued_s: float = 0.0
    """Seconds that the request waited for a slot; 0 where an engine does not tell."""


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """A finished completion; fields as in `GenerateChunk`, for the whole output."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    stop_matched: str | int | None = None
    num_cached: int = 0
    num_stale_kv: int = 0
    top_logprobs: tuple[Mapping[int, float], ...] = ()


async def collect(chunks: AsyncIterator[GenerateChunk]) -> GenerateResult:
    """The chunks of one request, put together."""
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    top_logprobs: list[Mapping[int, float]] = []
    async for chunk in chunks:
        tokens += chunk.tokens
        logprobs += chunk.logprobs
        versions += chunk.versions
        top_logprobs += chunk.top_logprobs
        if chunk.finish_reason is not None:
            return GenerateResult(
                tuple(tokens),
                tuple(logprobs),
                tuple(versions),
                chunk.finish_reason,
                chunk.stop_matched,
                chunk.num_cached,
                chunk.num_stale_kv,
                tuple(top_logprobs),
            )
    raise EngineError("the engine's stream ended without a finish reason")
