"""The engine over its process: streams, cancellation, death, restart."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.engine import GenerateChunk, GenerateRequest, Sampling, collect
from areal_sdk.errors import ContextOverflowError, EngineError
from areal_sdk.testing import check_engine
from areal_sdk.types import FinishReason, WeightUpdate
from tests.backends.local.cores import prompt
from tests.backends.local.reference import Reference

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 30.0


async def started(checkpoint: Path, log_dir: Path) -> LocalEngine:
    engine = LocalEngine(
        checkpoint, log_dir=log_dir, options=LocalOptions(max_slots=2, kv_memory_gb=0.1)
    )
    await engine.start()
    return engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalEngine]:
    engine = await started(checkpoint, tmp_path_factory.mktemp("logs"))
    yield engine
    await engine.aclose()


def endless(seed: int = 0, **fields: object) -> GenerateRequest:
    return GenerateRequest(prompt(20, salt=seed), 900, seed=seed, ignore_eos=True, **fields)  # type: ignore[arg-type]


async def test_the_engine_keeps_the_contract_that_training_depends_on(
    checkpoint: Path, tmp_path: Path
) -> None:
    await check_engine(
        LocalEngine(
            checkpoint, log_dir=tmp_path, options=LocalOptions(max_slots=4, kv_memory_gb=0.1)
        )
    )


async def test_a_stream_and_a_whole_answer_are_the_same(
    engine: LocalEngine, reference: Reference
) -> None:
    request = GenerateRequest(prompt(30), 25, seed=3, ignore_eos=True)
    whole = await engine.generate(request)
    chunks = [chunk async for chunk in engine.stream(request)]
    assert [token for chunk in chunks for token in chunk.tokens] == list(whole.tokens)
    assert len(chunks) == 25, "token by token"
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * 24
    assert chunks[-1].finish_reason is whole.finish_reason is FinishReason.LENGTH
    expected = reference.logprobs(request.tokens, whole.tokens)
    assert whole.logprobs == pytest.approx(expected, abs=1e-4)


async def test_every_field_of_a_request_reaches_the_sampler(engine: LocalEngine) -> None:
    forced = await engine.generate(
        GenerateRequest(
            prompt(10),
            5,
            sampling=Sampling(logit_bias={42: 100.0}),
            num_top_logprobs=2,
            stop_tokens=(42,),
            seed=1,
        )
    )
    assert (forced.tokens, forced.stop_matched) == ((42,), 42)
    assert len(forced.top_logprobs[0]) == 2
    greedy = GenerateRequest(prompt(10), 5, Sampling(temperature=0.0), ignore_eos=True)
    certain = GenerateRequest(prompt(10), 5, Sampling(top_k=1), ignore_eos=True)
    assert (await engine.generate(greedy)).tokens == (await engine.generate(certain)).tokens


async def test_a_request_says_how_long_it_waited_for_a_slot(engine: LocalEngine) -> None:
    requests = [GenerateRequest(prompt(9), 40, seed=seed, ignore_eos=True) for seed in range(8)]

    async def last_chunk(request: GenerateRequest) -> GenerateChunk:
        return [chunk async for chunk in engine.stream(request)][-1]

    async with asyncio.timeout(DEADLINE_S):
        began = time.monotonic()
        waited = [chunk.queued_s for chunk in await asyncio.gather(*map(last_chunk, requests))]
        took_s = time.monotonic() - began
    assert 0.0 < min(waited) < max(waited) < took_s


async def test_closing_a_stream_frees_its_slot(engine: LocalEngine) -> None:
    async with asyncio.timeout(DEADLINE_S):
        for seed in range(4):  # more than there are slots
            async with aclosing(engine.stream(endless(seed))) as chunks:
                async for _ in chunks:
                    break
        result = await engine.generate(GenerateRequest(prompt(9), 4, seed=1, ignore_eos=True))
    assert len(result.tokens) == 4


async def test_an_aborted_request_gets_its_tokens_and_a_terminal_chunk(engine: LocalEngine) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        answer = group.create_task(engine.generate(endless(1, request_id="a")))
        other = group.create_task(
            engine.generate(
                GenerateRequest(prompt(20), 30, seed=2, ignore_eos=True, request_id="b")
            )
        )
        await other
        await engine.abort("a")
    assert answer.result().finish_reason is FinishReason.ABORT
    assert 0 < len(answer.result().tokens) < 900
    assert other.result().finish_reason is FinishReason.LENGTH


async def test_paused_generation_goes_on_where_it_stopped(
    engine: LocalEngine, reference: Reference
) -> None:
    request = GenerateRequest(prompt(33), 60, seed=5, ignore_eos=True)
    async with asyncio.timeout(DEADLINE_S):
        tokens: list[int] = []
        logprobs: list[float] = []
        async with aclosing(engine.stream(request)) as chunks:
            async for chunk in chunks:
                tokens += chunk.tokens
                logprobs += chunk.logprobs
                if len(tokens) == 3:
                    await engine.pause()
                    await engine.resume()
    assert len(tokens) == 60
    assert logprobs == pytest.approx(reference.logprobs(request.tokens, tokens), abs=1e-4)


async def test_prompts_that_cannot_be_served_are_refused_with_the_cure(
    engine: LocalEngine,
) -> None:
    with pytest.raises(ContextOverflowError, match="1024") as caught:
        await engine.generate(GenerateRequest(prompt(1024), 5))
    assert caught.value.prompt_tokens == 1024
    refused = {
        "empty": GenerateRequest((), 5),
        "token 300": GenerateRequest((5, 300), 5),
        "at least 1": GenerateRequest((5,), 0),
        "temperature": GenerateRequest((5,), 5, Sampling(temperature=-1.0)),
        "repetition_penalty": GenerateRequest((5,), 5, Sampling(repetition_penalty=0.0)),
        "repetition_penalty 1e-40": GenerateRequest((5,), 5, Sampling(repetition_penalty=1e-40)),
        "temperature 1e-40": GenerateRequest((5,), 5, Sampling(temperature=1e-40)),
        "temperature nan": GenerateRequest((5,), 5, Sampling(temperature=float("nan"))),
        "logit_bias": GenerateRequest((5,), 5, Sampling(logit_bias={5: 1e39})),
        "and logit_bias": GenerateRequest((5,), 5, Sampling(logit_bias={5: float("nan")})),
        "presence_penalty": GenerateRequest((5,), 5, Sampling(presence_penalty=-1e39)),
        "tokenizer.json": GenerateRequest((5,), 5, stop=("x",)),
    }
    for named, request in refused.items():
        with pytest.raises(EngineError, match=named):
            await engine.generate(request)


async def test_weights_change_in_flight_and_a_bad_push_changes_nothing(
    checkpoint: Path,
    new_weights: Path,
    new_reference: Reference,
    reference: Reference,
    tmp_path: Path,
) -> None:
    engine = await started(checkpoint, tmp_path)
    try:
        with pytest.raises(EngineError, match="crc32"):
            await engine.update_weights(WeightUpdate(7, str(new_weights), checksum="crc32:0"))
        request = GenerateRequest(prompt(40), 200, seed=1, ignore_eos=True)
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            update = None
            async for chunk in engine.stream(request):
                tokens += chunk.tokens
                logprobs += chunk.logprobs
                versions += chunk.versions
                if len(tokens) == 5:
                    with pytest.raises(EngineError, match="no weights at"):
                        await engine.update_weights(WeightUpdate(7, str(tmp_path / "absent")))
                    assert engine.version == 0
                    update = group.create_task(
                        engine.update_weights(WeightUpdate(1, str(new_weights)))
                    )
            assert update is not None
        assert engine.version == 1
        split = versions.index(1)
        assert versions == [0] * split + [1] * (200 - split)
        old = reference.logprobs(request.tokens, tokens)
        new = new_reference.logprobs(request.tokens, tokens)
        assert logprobs == pytest.approx([*old[:split], *new[split:]], abs=1e-4)
    finally:
        await engine.aclose()


async def test_broken_weights_fail_the_requests_and_the_next_ones_serve_again(
    checkpoint: Path, new_weights: Path, tmp_path: Path
) -> None:
    tensors = load_file(new_weights)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, tmp_path / "diverged.safetensors")
    engine = await started(checkpoint, tmp_path)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await engine.update_weights(WeightUpdate(1, str(tmp_path / "diverged.safetensors")))
            with pytest.raises(EngineError, match="version 1 are broken"):
                await engine.generate(endless())
            await engine.update_weights(WeightUpdate(2, str(new_weights)))
            result = await engine.generate(GenerateRequest(prompt(9), 4, seed=1, ignore_eos=True))
        assert result.versions == (2,) * 4
    finally:
        await engine.aclose()


async def test_a_dead_worker_fails_its_streams_by_name_and_a_restart_brings_the_weights_back(
    checkpoint: Path, new_weights: Path, new_reference: Reference, tmp_path: Path
) -> None:
    engine = await started(checkpoint, tmp_path)
    try:
        await engine.update_weights(WeightUpdate(1, str(new_weights)))
        await engine.update_weights(WeightUpdate(2, None))
        async with asyncio.timeout(DEADLINE_S):
            stream = engine.stream(endless())
            await anext(stream)
            os.kill(engine.child.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match=r"engine.*SIGKILL.*engine\.log"):
                await collect(stream)
            with pytest.raises(EngineError, match="SIGKILL"):
                await engine.generate(endless())
            await engine.restart()
        assert engine.version == 2
        result = await engine.generate(GenerateRequest(prompt(40), 10, seed=1, ignore_eos=True))
        assert result.versions == (2,) * 10
        expected = new_reference.logprobs(prompt(40), result.tokens)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)
    finally:
        await engine.aclose()
        await engine.aclose()


async def test_a_part_of_an_update_is_for_the_weights_that_the_engine_was_started_with(
    checkpoint: Path, new_weights: Path, tmp_path: Path
) -> None:
    """The engine reads the other tensors again after a restart, and beside a tensor that is stacked
    with them."""
    base = Path(shutil.copytree(checkpoint, tmp_path / "base"))
    name = "model.layers.0.self_attn.q_proj.weight"
    part = tmp_path / "part.safetensors"
    save_file({name: load_file(new_weights)[name]}, part)
    engine = await started(base, tmp_path)
    told = rf"the weights in {base} have changed .* version [12] holds only the tensors that"
    try:
        await engine.update_weights(WeightUpdate(1, str(part), contents="changed"))
        shutil.copyfile(new_weights, base / "model.safetensors.new")
        (base / "model.safetensors.new").rename(base / "model.safetensors")
        with pytest.raises(EngineError, match=told):
            await engine.update_weights(WeightUpdate(2, str(part), contents="changed"))
        assert engine.version == 1
        with pytest.raises(EngineError, match=told):
            await engine.restart()
    finally:
        await engine.aclose()


async def test_a_directory_that_is_no_model_says_so(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, log_dir=tmp_path)
    with pytest.raises(EngineError, match=r"config\.json"):
        await engine.start()
