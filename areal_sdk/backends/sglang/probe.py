"""What is checked of a server before it serves a token: version, options, logprob convention."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal_sdk.backends.sglang.client import SGLangClient
from areal_sdk.backends.sglang.install import why_not
from areal_sdk.backends.sglang.model_info import dtype_when_auto
from areal_sdk.errors import EngineError

_PROBE_PROMPT = (1, 2, 3, 4)
_PROBE_TEMPERATURE = 0.7
_NUM_PROBE_SAMPLES = 12
_MAX_PROBE_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server told about itself and was seen to do."""

    version: str
    model_path: str
    dtype: str
    device: str
    tp_size: int
    max_context: int | None
    """As it was started with; None: what the model was made for."""
    max_prompt: int
    num_kv_tokens: int
    """Tokens its KV pool holds; a longer request can never run."""
    is_seeded: bool
    """It honours the seed of a request."""
    is_incremental: bool
    has_grammar: bool
    """It can constrain an answer to a JSON schema."""


async def probe_server(client: SGLangClient, *, model: Path) -> ServerInfo:
    """Raise `EngineError`, naming the cure, when the server cannot be trained against."""
    raw = await client.server_info()
    info = _read_info(raw, client.address)
    if info.dtype == "auto":
        info = replace(info, dtype=dtype_when_auto(model))
    await _check_logprob_convention(client)
    return info


def _read_info(raw: dict[str, Any], address: str) -> ServerInfo:
    version = str(raw.get("version", "unknown"))
    if why := why_not(version):
        raise EngineError(
            f"{address} runs SGLang {version}; {why}: areal-sdk engine install sglang"
        )
    if int(raw.get("dp_size") or 1) != 1:
        raise EngineError(
            f"{address} runs with --dp-size {raw['dp_size']}: SGLang cannot update the weights of "
            "data-parallel replicas; start one server each and name them all: --engine http://a,http://b"
        )
    return ServerInfo(
        version=version,
        model_path=str(raw.get("model_path", "")),
        dtype=str(raw.get("dtype", "auto")),
        device=str(raw.get("device", "cuda")),
        tp_size=int(raw.get("tp_size") or 1),
        max_context=int(raw["context_length"]) if raw.get("context_length") else None,
        max_prompt=int(raw["max_req_input_len"]),
        num_kv_tokens=int(raw.get("max_total_num_tokens") or raw.get("max_total_tokens") or 0),
        is_seeded=bool(raw.get("enable_deterministic_inference")),
        is_incremental=bool(raw.get("incremental_streaming_output")),
        has_grammar=raw.get("grammar_backend") not in (None, "none"),
    )


async def _check_logprob_convention(client: SGLangClient) -> None:
    """Logprobs must be log softmax(logits / T): check differences, which need no normaliser.

    Sampled at T, log p(a) - log p(b) must be the T = 1 difference divided by T.
    """
    sampled: dict[int, float] = {}
    for _ in range(_NUM_PROBE_SAMPLES):
        meta, _ = await client.next_token_logprobs(
            _PROBE_PROMPT, (0,), temperature=_PROBE_TEMPERATURE
        )
        logprob, token, _ = meta["output_token_logprobs"][0]
        sampled[int(token)] = float(logprob)
        if len(sampled) >= 4:
            break
    tokens = sorted(sampled, key=lambda token: sampled[token])
    _, plain = await client.next_token_logprobs(_PROBE_PROMPT, tokens)
    if len(tokens) == 1:  # one token has nearly all the mass: its logprob is then about 0 at any T
        expected = plain[tokens[0]] / _PROBE_TEMPERATURE
        error = 0.0 if sampled[tokens[0]] >= expected - _MAX_PROBE_ERROR else 1.0
    else:
        low, high = tokens[0], tokens[-1]
        expected = (plain[high] - plain[low]) / _PROBE_TEMPERATURE
        error = abs(sampled[high] - sampled[low] - expected) / max(1.0, abs(expected))
    if error > _MAX_PROBE_ERROR:
        raise EngineError(
            f"{client.address} does not return log softmax(logits / T): at T = "
            f"{_PROBE_TEMPERATURE} a difference of logprobs is off by {error:.2g} (relative); "
            "start it without SGLANG_RETURN_ORIGINAL_LOGPROB, or training would be biased"
        )
