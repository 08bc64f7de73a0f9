"""The scripted engine keeps the promises that other tests build on."""

import asyncio

import pytest

from areal_sdk import GenerateRequest, WeightUpdate
from areal_sdk.errors import ContextOverflowError, EngineError
from areal_sdk.testing import Fault, Reply, ScriptedEngine, scripted_logprob
from areal_sdk.types import FinishReason


def request(**changes: object) -> GenerateRequest:
    fields: dict[str, object] = {"tokens": (1, 2, 3), "max_new_tokens": 64} | changes
    return GenerateRequest(**fields)  # type: ignore[arg-type]


async def test_text_is_delivered_as_bytes_followed_by_the_stop_token() -> None:
    result = await ScriptedEngine("hi").generate(request())
    assert result.tokens == (*b"hi", 258)
    assert result.logprobs == tuple(scripted_logprob(t, i) for i, t in enumerate(result.tokens))
    assert (result.finish_reason, result.stop_matched) == (FinishReason.STOP, 258)


async def test_replies_are_used_in_order_and_running_out_is_an_error() -> None:
    engine = ScriptedEngine(["a", [7, 8]])
    assert (await engine.generate(request())).tokens == (97, 258)
    assert (await engine.generate(request())).tokens == (7, 8, 258)
    with pytest.raises(EngineError, match="has 2 replies and this is request 3"):
        await engine.generate(request())
    assert len(engine.requests) == 3


async def test_a_function_answers_from_the_request() -> None:
    async def echo(asked: GenerateRequest) -> list[int]:
        return [t + 1 for t in asked.tokens]

    assert (await ScriptedEngine(echo).generate(request())).tokens == (2, 3, 4, 258)


async def test_streaming_brings_one_token_a_chunk_and_one_finish_reason() -> None:
    chunks = [chunk async for chunk in ScriptedEngine("abc").stream(request())]
    assert [c.tokens for c in chunks] == [(97,), (98,), (99,), (258,)]
    assert [c.finish_reason for c in chunks] == [None, None, None, FinishReason.STOP]


async def test_max_new_tokens_cuts_the_output() -> None:
    result = await ScriptedEngine("abc").generate(request(max_new_tokens=2))
    assert (result.tokens, result.finish_reason) == ((97, 98), FinishReason.LENGTH)


async def test_the_stop_token_may_be_the_last_token_allowed() -> None:
    result = await ScriptedEngine("abc").generate(request(max_new_tokens=4))
    assert (result.tokens[-1], result.finish_reason) == (258, FinishReason.STOP)


async def test_a_stop_string_ends_with_the_token_that_completes_it() -> None:
    result = await ScriptedEngine("one\ntwo").generate(request(stop=("\nt",)))
    assert result.tokens == tuple(b"one\nt")
    assert (result.finish_reason, result.stop_matched) == (FinishReason.STOP, "\nt")


async def test_ignore_eos_goes_on_to_the_limit() -> None:
    result = await ScriptedEngine("ab").generate(request(ignore_eos=True, max_new_tokens=5))
    assert (result.tokens, result.finish_reason) == (tuple(b"ababa"), FinishReason.LENGTH)


async def test_each_token_has_the_version_of_its_own_moment() -> None:
    async def swap(asked: GenerateRequest, index: int) -> None:
        if index == 2:
            await engine.update_weights(WeightUpdate(version=1, path=None))

    engine = ScriptedEngine("abc", on_token=swap)
    assert (await engine.generate(request())).versions == (0, 0, 1, 1)


async def test_a_paused_engine_holds_requests_until_resumed() -> None:
    engine = ScriptedEngine("abc")
    await engine.pause()
    task = asyncio.create_task(engine.generate(request()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    assert engine.num_active == 1
    await engine.resume()
    assert (await task).tokens == (*b"abc", 258)


@pytest.mark.parametrize("after", [0, 2])
async def test_scripted_faults_come_after_the_tokens_promised(after: int) -> None:
    async def collect(fault: Fault) -> list[int]:
        async for chunk in ScriptedEngine(Reply("abc", fault=fault, after=after)).stream(request()):
            seen.extend(chunk.tokens)
        return seen

    seen: list[int] = []
    with pytest.raises(EngineError, match="scripted fault"):
        await collect(Fault.RAISE)
    assert seen == list(b"abc"[:after])

    seen = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(collect(Fault.HANG), timeout=0.05)
    assert seen == list(b"abc"[:after])

    seen = []
    assert await collect(Fault.CLOSE) == list(b"abc"[:after])


async def test_a_stream_that_breaks_is_an_engine_error_for_generate() -> None:
    with pytest.raises(EngineError, match="ended without a finish reason"):
        await ScriptedEngine(Reply("abc", fault=Fault.CLOSE, after=1)).generate(request())


async def test_an_abort_says_so() -> None:
    result = await ScriptedEngine(Reply("abc", fault=Fault.ABORT, after=1)).generate(request())
    assert (result.tokens, result.finish_reason) == ((97,), FinishReason.ABORT)


async def test_closing_a_stream_early_frees_it() -> None:
    engine = ScriptedEngine("abc")
    stream = engine.stream(request())
    await anext(stream)
    assert engine.num_active == 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert engine.num_active == 0


async def test_a_prompt_that_fills_the_context_overflows() -> None:
    engine = ScriptedEngine("abc", max_context=4)
    with pytest.raises(ContextOverflowError):
        await engine.generate(request(tokens=(1, 2, 3, 4)))
    result = await engine.generate(request())
    assert (result.tokens, result.finish_reason) == ((97,), FinishReason.LENGTH)
