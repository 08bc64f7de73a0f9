"""The checks of a server before it serves a token: version, options, logprob convention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from areal_sdk.backends.remote import ServerInfo, stored_dtype
from areal_sdk.errors import EngineError
from areal_sdk_sglang.install import why_not

_PROBE_PROMPT = (1, 2, 3, 4)
_PROBE_TEMPERATURE = 0.7
_NUM_PROBE_SAMPLES = 12
_MAX_PROBE_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class SGLangServerInfo(ServerInfo):
    is_incremental: bool = True
    """Whether the server streams deltas instead of everything so far (`--incremental-streaming-output`)."""


class AskLogprobs(Protocol):
    """`SGLangClient.next_token_logprobs`."""

    async def __call__(
        self, tokens: Sequence[int], candidates: Sequence[int], *, temperature: float = 1.0
    ) -> tuple[dict[str, Any], dict[int, float]]: ...


def read_info(raw: dict[str, Any], address: str, *, model: Path) -> SGLangServerInfo:
    """Raise `EngineError`, naming the cure, when the server cannot be trained against."""
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
    dtype = str(raw.get("dtype", "auto"))
    tp_size = int(raw.get("tp_size") or 1)
    return SGLangServerInfo(
        dtype=dtype_when_auto(model) if dtype == "auto" else dtype,
        max_context=int(raw["context_length"]) if raw.get("context_length") else None,
        num_kv_tokens=int(raw.get("max_total_num_tokens") or raw.get("max_total_tokens") or 0),
        num_ranks=tp_size,
        has_grammar=raw.get("grammar_backend") not in (None, "none"),
        hashes_bytes=raw.get("device", "cuda") == "cpu" and tp_size == 1,
        is_incremental=bool(raw.get("incremental_streaming_output")),
    )


def dtype_when_auto(directory: Path) -> str:
    """The type that SGLang chooses for `--dtype auto`: float16 for float32 checkpoints."""
    saved = stored_dtype(directory)
    return "float16" if saved == "float32" else saved


async def check_logprob_convention(ask: AskLogprobs, address: str) -> None:
    """Logprobs must be log softmax(logits / T): check differences, which need no normaliser.

    Sampled at T, log p(a) - log p(b) must be the T = 1 difference divided by T.
    """
    sampled: dict[int, float] = {}
    for _ in range(_NUM_PROBE_SAMPLES):
        meta, _ = await ask(_PROBE_PROMPT, (0,), temperature=_PROBE_TEMPERATURE)
        logprob, token, _ = meta["output_token_logprobs"][0]
        sampled[int(token)] = float(logprob)
        if len(sampled) >= 4:
            break
    tokens = sorted(sampled, key=lambda token: sampled[token])
    _, plain = await ask(_PROBE_PROMPT, tokens)
    if len(tokens) == 1:  # one token has nearly all the mass: its logprob is then about 0 at any T
        expected = plain[tokens[0]] / _PROBE_TEMPERATURE
        error = 0.0 if sampled[tokens[0]] >= expected - _MAX_PROBE_ERROR else 1.0
    else:
        low, high = tokens[0], tokens[-1]
        expected = (plain[high] - plain[low]) / _PROBE_TEMPERATURE
        error = abs(sampled[high] - sampled[low] - expected) / max(1.0, abs(expected))
    if error > _MAX_PROBE_ERROR:
        raise EngineError(
            f"{address} does not return log softmax(logits / T): at T = "
            f"{_PROBE_TEMPERATURE} a difference of logprobs is off by {error:.2g} (relative); "
            "start it without SGLANG_RETURN_ORIGINAL_LOGPROB, or training would be biased"
        )
