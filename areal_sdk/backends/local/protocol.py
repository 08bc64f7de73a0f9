"""The messages between the main process and the engine's process. JSON both ways; no torch."""

from dataclasses import dataclass, fields
from typing import Any

from areal_sdk.config import EngineSection
from areal_sdk.engine import GenerateChunk, GenerateRequest, Sampling
from areal_sdk.types import FinishReason

_SENT = [field.name for field in fields(GenerateRequest) if field.name != "session"]
_SAMPLING = [field.name for field in fields(Sampling)]


class LocalOptions(EngineSection):
    """The settings of `[engine]`, and further ones that only this engine gets."""

    kv_memory_gb: float | None = None
    """Gigabytes for keys and values; default: a share of the free memory."""
    deterministic: bool = False
    """`run.deterministic`: batches of one shape, so that outputs are the same bit by bit."""


@dataclass(frozen=True, slots=True)
class Generate:
    """A request, and whether its tokens are wanted one by one or all at the end."""

    request: GenerateRequest
    is_streamed: bool


def encode_generate(generate: Generate) -> dict[str, Any]:
    request = generate.request
    payload = {name: getattr(request, name) for name in _SENT}
    payload["sampling"] = {name: getattr(request.sampling, name) for name in _SAMPLING}
    biases = list(request.sampling.logit_bias.items())  # keys of JSON are strings
    payload["sampling"] |= {"logit_bias": biases}
    return {"request": payload, "is_streamed": generate.is_streamed}


def decode_generate(payload: dict[str, Any]) -> Generate:
    request = dict(payload["request"])
    for name in ("tokens", "stop", "stop_tokens"):
        request[name] = tuple(request[name])
    sampling = request["sampling"]
    request["sampling"] = Sampling(**sampling | {"logit_bias": dict(sampling["logit_bias"])})
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
