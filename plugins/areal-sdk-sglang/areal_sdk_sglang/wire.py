"""SGLang's `/generate` call: requests out, server-sent events in, and a version for each token.

Pure functions and one state machine; no I/O.

While a request streams, each event carries the server's *present* label. The server may set a new label
before all tokens sampled under the old label have been sent. Another field is exact while streaming:
`num_retractions` travels with the tokens, and a swap in retract mode raises it by one. So a new label
counts from the event whose retraction count rose. Some events may hold tokens of both versions; they
are held back until the final event, whose spans name the version of every token. If the spans ever
contradict tokens that were handed out, the request fails, so no token gets a wrong version.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from areal_sdk.backends.remote import JSON, Delta, RequestRefusedError
from areal_sdk.engine import SAMPLING_BOUNDS, GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.types import FinishReason


def generate_body(
    request: GenerateRequest,
    *,
    sampled: Sequence[int] = (),
    request_id: str,
    cache_key: str | None = None,
) -> JSON:
    """The JSON of one attempt; `sampled` is what earlier attempts already produced."""
    sampling = request.sampling
    parameters: JSON = {
        "max_new_tokens": request.max_new_tokens - len(sampled),
        **{name: getattr(sampling, name) for name in SAMPLING_BOUNDS},
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "ignore_eos": request.ignore_eos,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if request.stop:
        parameters["stop"] = list(request.stop)
    if request.stop_tokens:
        parameters["stop_token_ids"] = list(request.stop_tokens)
    if sampling.logit_bias:
        parameters["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if request.json_schema is not None:
        parameters["json_schema"] = _dumps(request.json_schema)
    if request.seed is not None:
        parameters["sampling_seed"] = request.seed & 0x7FFFFFFF
    body: JSON = {
        "rid": request_id,
        "input_ids": [*request.tokens, *sampled],
        "sampling_params": parameters,
        "stream": True,
        "return_logprob": True,
    }
    if request.num_top_logprobs:
        body["top_logprobs_num"] = request.num_top_logprobs
    if cache_key is not None:
        body["extra_key"] = cache_key  # keeps this version's prefix cache apart from the others'
    return body


@dataclass(slots=True)
class EventReader:
    """Turns the events of one attempt into `Delta`s."""

    version_of: Callable[[str], int]
    """Our version for a server's label; raises `StaleWeightsError` for a label we never gave."""
    submitted_version: int
    """The version that the server served when the request was sent."""
    is_incremental: bool
    """The server sends deltas, not everything so far (`--incremental-streaming-output`)."""
    wants_top_logprobs: bool = False
    keeps_kv: bool = False
    """Swaps do not retract (`in_place`): KV outlives the weights that made it."""
    _num_seen: int = 0
    _versions: list[int] = field(default_factory=list)
    """Versions of the tokens that were handed out."""
    _held: list[tuple[int, float, Mapping[int, float] | None]] = field(default_factory=list)
    _num_retractions: int = 0
    _is_holding: bool = False

    def read(self, event: JSON) -> Delta | None:
        """The tokens that this event adds; None if it adds none (yet)."""
        if "error" in event:
            raise EngineError(f"SGLang: {_error_message(event)}")
        meta: JSON = event["meta_info"]
        final = meta.get("finish_reason")
        if final is not None and final.get("status_code") == _BAD_REQUEST:
            # the one token of such an event answers nothing that was asked
            raise RequestRefusedError(f"SGLang refused a request: {final.get('message') or ''}")
        new = self._new_tokens(event, meta)
        if final is not None:
            return self._finish(new, meta, final)
        if not new:
            return None
        version = self._streamed_version(len(new), meta)
        if self._is_holding or version is None:
            self._is_holding = True
            self._held += new
            return None
        return self._hand_out(new, [version] * len(new))

    def _new_tokens(
        self, event: JSON, meta: JSON
    ) -> list[tuple[int, float, Mapping[int, float] | None]]:
        start = 0 if self.is_incremental else self._num_seen
        ids: list[int] = event["output_ids"][start:]
        entries: list[list[Any]] = meta["output_token_logprobs"][start:]
        if len(entries) != len(ids) or any(e[1] != i for e, i in zip(entries, ids, strict=True)):
            raise EngineError("SGLang returned logprobs that do not belong to its output tokens")
        top: Sequence[Mapping[int, float] | None] = [None] * len(ids)
        if self.wants_top_logprobs:
            listed = meta["output_top_logprobs"][start:]
            top = [{token: logprob for logprob, token, _ in position or ()} for position in listed]
        self._num_seen += len(ids)
        return [(e[1], float(e[0]), t) for e, t in zip(entries, top, strict=True)]

    def _streamed_version(self, num_new: int, meta: JSON) -> int | None:
        """The version of tokens that arrived in mid-stream; None when it is not certain."""
        label_version = self.version_of(meta["weight_version"])
        retractions = int(meta["num_retractions"])
        is_retracted = retractions != self._num_retractions
        self._num_retractions = retractions
        last = self._versions[-1] if self._versions else self.submitted_version
        if label_version == last:
            return last
        if self.keeps_kv or not self._versions:
            return None  # a swap, and nothing that says which side of it these tokens are on
        if not is_retracted:
            return last  # the label ran ahead of the tokens
        return label_version if num_new == 1 else None

    def _finish(
        self, new: list[tuple[int, float, Mapping[int, float] | None]], meta: JSON, final: JSON
    ) -> Delta:
        spans = self._spans(meta)
        handed_out = len(self._versions)
        if spans[:handed_out] != self._versions:
            raise EngineError(  # no fault to continue from: what was handed out is wrong
                "SGLang's version spans contradict the versions already streamed: "
                f"{meta.get('weight_versions')}"
            )
        tokens = [*self._held, *new]
        delta = self._hand_out(tokens, spans[handed_out:])
        kind = str(final["type"])
        matched = final.get("matched")
        return Delta(
            delta.tokens,
            delta.logprobs,
            delta.versions,
            delta.top_logprobs,
            finish_reason=_FINISH_REASONS.get(kind, FinishReason.ABORT),
            stop_matched=matched if isinstance(matched, str | int) else None,
            num_cached=int(meta.get("cached_tokens") or 0),
            num_stale_kv=self._num_stale_kv(spans),
            message=str(final.get("message") or ""),
        )

    def _spans(self, meta: JSON) -> list[int]:
        versions: list[int] = []
        for span in meta.get("weight_versions") or []:
            version = self.version_of(span["version"])
            versions += [version] * (int(span["end"]) - len(versions))
        if len(versions) < self._num_seen:  # an abort before the first token has no spans
            raise EngineError(
                f"SGLang named the version of {len(versions)} of {self._num_seen} tokens"
            )
        return versions[: self._num_seen]

    def _num_stale_kv(self, versions: Sequence[int]) -> int:
        if not self.keeps_kv or not versions:
            return 0
        kv_version = min(self.submitted_version, versions[0])
        return sum(version != kv_version for version in versions)

    def _hand_out(
        self,
        tokens: Sequence[tuple[int, float, Mapping[int, float] | None]],
        versions: Sequence[int],
    ) -> Delta:
        self._versions += versions
        return Delta(
            tuple(token for token, _, _ in tokens),
            tuple(logprob for _, logprob, _ in tokens),
            tuple(versions),
            tuple(top for _, _, top in tokens if top is not None),
        )


_BAD_REQUEST = 400
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def _error_message(event: JSON) -> str:
    error = event["error"]
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _dumps(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
