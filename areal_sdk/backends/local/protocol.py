"""What travels between the main process and the engine's. JSON both ways; no torch."""

from dataclasses import dataclass, fields
from typing import Any

from areal_sdk.config import EngineSection
from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.types import FinishReason

_NOT_SENT = {"session"}


class LocalOptions(EngineSection):
    """`[engine]`, and what only this engine is told."""

    kv_memory_gb: float | None = None
    """For keys and values; default: a share of the memory that is free."""
    deterministic: bool = False
    """`run.deterministic`: batches of one shape, so that outputs are the same bit by bit."""


@dataclass(frozen=True, slots=True)
class Generate:
    """A request, and whether its tokens are wanted one by one or all at the end."""

    request: GenerateRequest
    is_streamed: bool


def encode_generate(generate: Generate) -> dict[str, Any]:
    request = generate.request
    payload = {
        field.name: getattr(request, field.name)
        for field in fields(GenerateRequest)
        if field.name not in _NOT_SENT
    }
    payload["logit_bias"] = list(request.logit_bias.items())  # JSON keys are strings
    return {"request": payload, "is_streamed": generate.is_streamed}


def decode_generate(payload: dict[str, Any]) -> Generate:
    request = dict(payload["request"])
    for name in ("tokens", "stop", "stop_tokens"):
        request[name] = tuple(request[name])
    request["logit_bias"] = dict(request["logit_bias"])
    return Generate(GenerateRequest(**request), payload["is_streamed"])


def encode_chunk(chunk: GenerateChunk) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "tokens": chunk.tokens,
        "logprobs": chunk.logprobs,
        "versions": chunk.versions,
    }
    if chunk.top_logprobs:
        payload["top_logprobs"] = [list(top.items()) for top in chunk.top_logprobs]
    if chunk.finish_reason is not None:
        payload["finish_reason"] = chunk.finish_reason.value
        payload["stop_matched"] = chunk.stop_matched
        payload["num_cached"] = chunk.num_cached
        payload["num_stale_kv"] = chunk.num_stale_kv
    return payload


def decode_chunk(payload: dict[str, Any]) -> GenerateChunk:
    reason = payload.get("finish_reason")
    return GenerateChunk(
        tuple(payload["tokens"]),
        tuple(payload["logprobs"]),
        tuple(payload["versions"]),
        None if reason is None else FinishReason(reason),
        payload.get("stop_matched"),
        payload.get("num_cached", 0),
        payload.get("num_stale_kv", 0),
        tuple(dict(top) for top in payload.get("top_logprobs", ())),
    )
