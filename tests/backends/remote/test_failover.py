"""A request over several attempts: budget, and stop strings that began on another server."""

from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.backends.remote.client import Delta
from areal_sdk.backends.remote.failover import ResumableRequest
from areal_sdk.engine import GenerateRequest
from areal_sdk.types import FinishReason


def bytes_to_text(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def delta(text: bytes, finish: FinishReason | None = None) -> Delta:
    count = len(text)
    return Delta(tuple(text), (-1.0,) * count, (0,) * count, finish_reason=finish)


def continuation(*stop: str, budget: int = 100) -> ResumableRequest:
    return ResumableRequest(GenerateRequest((1,), budget, stop=stop), bytes_to_text)


def test_the_budget_counts_what_earlier_attempts_sampled() -> None:
    request = continuation(budget=10)
    request.begin_attempt()
    request.add(delta(b"abc"))
    request.begin_attempt()
    request.add(delta(b"de"))
    assert (request.budget, bytes(request.sampled)) == (5, b"abcde")


def test_a_stop_string_over_the_boundary_ends_the_request() -> None:
    request = continuation("STOP")
    request.begin_attempt()
    request.add(delta(b"some ST"))
    request.begin_attempt()
    final = request.add(delta(b"OP and more"))
    assert (final.finish_reason, final.stop_matched) == (FinishReason.STOP, "STOP")
    assert bytes(request.sampled) == b"some STOP"
    assert len(final.logprobs) == len(final.versions) == len(final.tokens) == 2


def test_the_first_attempt_leaves_stop_strings_to_the_server() -> None:
    request = continuation("STOP")
    request.begin_attempt()
    assert request.add(delta(b"STOP and")).finish_reason is None


def test_stop_tokens_of_the_request_hold_when_those_of_the_model_do_not() -> None:
    request = ResumableRequest(
        GenerateRequest((1,), 9, stop_tokens=(99,), ignore_eos=True), bytes_to_text
    )
    request.begin_attempt()
    final = request.add(delta(b"abcabc"))
    assert (bytes(final.tokens), final.stop_matched) == (b"abc", 99)
    assert final.finish_reason is FinishReason.STOP


@given(text=st.text("ab", min_size=1, max_size=24), cut=st.integers(0, 24), step=st.integers(1, 5))
def test_a_cut_stream_stops_where_an_uncut_one_would(text: str, cut: int, step: int) -> None:
    raw = text.encode()
    end = raw.find(b"aba")
    cut = min(cut, len(raw))
    if 0 <= end <= cut - 3:
        cut = end + 2  # the server of the first attempt would have stopped there
    request = continuation("aba")
    request.begin_attempt()
    if cut:
        request.add(delta(raw[:cut]))
    request.begin_attempt()
    for begin in range(cut, len(raw), step):
        if request.add(delta(raw[begin : begin + step])).finish_reason is not None:
            break
    boundary = cut > 0 and 0 <= end < cut  # began before the cut: only we can see it
    expected = raw[: end + 3] if boundary else raw
    if boundary or end < 0:
        assert bytes(request.sampled) == expected
