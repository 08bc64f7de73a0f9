"""Events to tokens with versions: the streamed version is right, or the token is held back."""

from dataclasses import asdict, fields
from typing import Any

import pytest

from areal_sdk.backends.remote import Delta, RequestRefusedError
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.errors import EngineError, StaleWeightsError
from areal_sdk.types import FinishReason
from areal_sdk_sglang.wire import EventReader, generate_body


def version_of(label: str) -> int:
    run, _, version = label.partition(":")
    if run != "run":
        raise StaleWeightsError(label)
    return int(version)


def reader(*, submitted: int = 0, incremental: bool = True, keeps_kv: bool = False) -> EventReader:
    return EventReader(
        version_of, submitted_version=submitted, is_incremental=incremental, keeps_kv=keeps_kv
    )


def event(
    *tokens: int,
    label: str = "run:0",
    retractions: int = 0,
    finish: dict[str, Any] | None = None,
    spans: list[tuple[str, int, int]] | None = None,
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "weight_version": label,
        "num_retractions": retractions,
        "finish_reason": finish,
        "output_token_logprobs": [[-0.5 * token, token, None] for token in tokens],
    }
    if spans is not None:
        meta["weight_versions"] = [{"version": v, "start": a, "end": b} for v, a, b in spans]
    return {"output_ids": list(tokens), "meta_info": meta}


LENGTH = {"type": "length", "length": 9}


def test_cumulative_and_incremental_servers_read_alike() -> None:
    spans = [("run:0", 0, 3)]
    incremental = [event(1), event(2), event(3, finish=LENGTH, spans=spans)]
    cumulative = [event(1), event(1, 2), event(1, 2, 3, finish=LENGTH, spans=spans)]
    for is_incremental, events in ((True, incremental), (False, cumulative)):
        read = reader(incremental=is_incremental)
        deltas = [delta for e in events if (delta := read.read(e))]
        assert [d.tokens for d in deltas] == [(1,), (2,), (3,)]
        assert [d.logprobs for d in deltas] == [(-0.5,), (-1.0,), (-1.5,)]
        assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_a_label_that_runs_ahead_of_the_tokens_names_nothing() -> None:
    read = reader()
    read.read(event(1))
    late = read.read(event(2, label="run:1"))
    resampled = read.read(event(3, label="run:1", retractions=1))
    assert late is not None
    assert resampled is not None
    assert (late.versions, resampled.versions) == ((0,), (1,))


def test_tokens_on_either_side_of_a_swap_wait_for_the_spans() -> None:
    read = reader()
    read.read(event(1))
    assert read.read(event(2, 3, label="run:1", retractions=1)) is None
    assert read.read(event(4, label="run:1", retractions=1)) is None
    spans = [("run:0", 0, 2), ("run:1", 2, 5)]
    final = read.read(event(5, label="run:1", retractions=1, finish=LENGTH, spans=spans))
    assert final is not None
    assert (final.tokens, final.versions) == ((2, 3, 4, 5), (0, 1, 1, 1))


def test_a_first_token_after_a_swap_waits_for_the_spans() -> None:
    read = reader(submitted=0)
    assert read.read(event(1, label="run:1")) is None
    final = read.read(
        event(2, label="run:1", finish=LENGTH, spans=[("run:0", 0, 1), ("run:1", 1, 2)])
    )
    assert final is not None
    assert final.versions == (0, 1)


def test_spans_that_contradict_what_was_streamed_fail_the_request() -> None:
    read = reader()
    read.read(event(1))
    with pytest.raises(EngineError, match="contradict"):
        read.read(event(2, label="run:1", finish=LENGTH, spans=[("run:1", 0, 2)]))


def test_weights_this_run_did_not_publish_are_refused() -> None:
    with pytest.raises(StaleWeightsError, match="base"):
        reader().read(event(1, label="base"))


def test_kv_kept_over_a_swap_is_counted() -> None:
    read = reader(keeps_kv=True)
    read.read(event(1))
    assert read.read(event(2, label="run:1")) is None
    spans = [("run:0", 0, 2), ("run:1", 2, 5)]
    final = read.read(event(3, 4, 5, label="run:1", finish=LENGTH, spans=spans))
    assert final is not None
    assert (final.versions, final.num_stale_kv) == ((0, 1, 1, 1), 3)


def test_logprobs_of_other_tokens_are_an_error() -> None:
    broken = event(1)
    broken["output_ids"] = [2]
    with pytest.raises(EngineError, match="do not belong"):
        reader().read(broken)


def test_missing_spans_are_an_error() -> None:
    with pytest.raises(EngineError, match="0 of 1 tokens"):
        reader().read(event(1, finish=LENGTH))


def test_an_error_event_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="out of memory"):
        reader().read({"error": {"message": "out of memory"}})


def test_a_refused_request_brings_no_tokens() -> None:
    """SGLang lets it sample one, after another prompt, and keeps the logprob to itself."""
    refused = {"type": "abort", "message": "Failed to compile json grammar: x", "status_code": 400}
    broken = event(43, finish=refused, spans=[("run:0", 0, 1)])
    broken["meta_info"]["output_token_logprobs"] = []
    with pytest.raises(RequestRefusedError, match="Failed to compile json grammar: x"):
        reader().read(broken)


def test_a_continuation_asks_for_the_rest() -> None:
    request = GenerateRequest((1, 2), 10, Sampling(temperature=0.5, top_k=0), stop=("x",), seed=7)
    body = generate_body(request, sampled=(3, 4, 5), request_id="r")
    assert body["input_ids"] == [1, 2, 3, 4, 5]
    sampling = body["sampling_params"]
    assert sampling["max_new_tokens"] == 7
    assert (sampling["temperature"], sampling["top_k"], sampling["stop"]) == (0.5, -1, ["x"])
    assert sampling["sampling_seed"] == 7
    assert body["return_logprob"] is True


def test_every_field_of_sampling_reaches_the_server() -> None:
    values: dict[str, Any] = {field.name: 2 for field in fields(Sampling)}
    sampling = Sampling(**values | {"logit_bias": {5: 2}})
    body = generate_body(GenerateRequest((1,), 1, sampling), request_id="r")
    assert asdict(sampling).items() <= (body["sampling_params"] | {"logit_bias": {5: 2}}).items()
    assert body["sampling_params"]["logit_bias"] == {"5": 2}


def test_nothing_is_handed_out_twice() -> None:
    read = reader()
    assert read.read(event(1)) == Delta((1,), (-0.5,), (0,))
    assert read.read(event()) is None
