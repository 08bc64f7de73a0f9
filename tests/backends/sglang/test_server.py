"""One real server on the CPU, one engine over it: the smoke that runs everywhere."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.engine import GenerateChunk, GenerateRequest, GenerateResult, Sampling, collect
from areal_sdk.errors import ContextOverflowError, EngineError, UnsupportedSchemaError
from areal_sdk.testing import check_engine
from areal_sdk.types import FinishReason, WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from tests.backends.sglang.conftest import MakeEngine, client_of
from tests.backends.sglang.rescoring import worst_error

PROMPT = tuple(b"What is 11+22?")


def weights(checkpoint: Path, version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoint / "model.safetensors"))


async def test_every_token_rescores_under_the_version_it_names(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    await engine.update_weights(weights(checkpoints[1], 1))
    request = GenerateRequest(PROMPT, 600, Sampling(temperature=0.7), ignore_eos=True)
    sampled: list[GenerateChunk] = []
    update: asyncio.Task[None] | None = None
    async for chunk in engine.stream(request):
        sampled.append(chunk)
        if len(sampled) == 20:
            update = asyncio.create_task(engine.update_weights(weights(checkpoints[2], 2)))
    assert update is not None
    await update
    result = await collect(_replayed(sampled))

    assert set(result.versions) == {1, 2}
    assert list(result.versions) == sorted(result.versions)
    assert worst_error(PROMPT, result, checkpoints, temperature=0.7) < 1e-3
    mislabelled = [checkpoints[0], checkpoints[2], checkpoints[1]]
    assert worst_error(PROMPT, result, mislabelled, temperature=0.7) > 0.05


async def _replayed(chunks: Sequence[GenerateChunk]) -> AsyncIterator[GenerateChunk]:
    for chunk in chunks:
        yield chunk


async def test_requests_end_as_they_should(server: ServerProcess, make_engine: MakeEngine) -> None:
    engine = await make_engine(server.address)
    short = await engine.generate(GenerateRequest(PROMPT, 5, ignore_eos=True))
    assert (len(short.tokens), short.finish_reason) == (5, FinishReason.LENGTH)

    every_byte = tuple(range(256))
    stopped = await engine.generate(GenerateRequest(PROMPT, 50, stop_tokens=every_byte))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.stop_matched == stopped.tokens[-1]

    greedy = await engine.generate(
        GenerateRequest(PROMPT, 12, Sampling(temperature=0.0), ignore_eos=True)
    )
    text = engine._decode(list(greedy.tokens))
    wanted = text[6:9]
    request = GenerateRequest(
        PROMPT, 12, sampling=Sampling(temperature=0.0), ignore_eos=True, stop=("<never>", wanted)
    )
    stopped = await engine.generate(request)
    assert (stopped.finish_reason, stopped.stop_matched) == (FinishReason.STOP, wanted)
    assert stopped.tokens == greedy.tokens[: len(stopped.tokens)]
    assert engine._decode(list(stopped.tokens)).endswith(wanted), "what was sampled is all there"
    with pytest.raises(ContextOverflowError, match="4090"):
        await engine.generate(GenerateRequest(PROMPT * 400, 5))
    with pytest.raises(EngineError, match="another model's tokenizer"):
        await engine.generate(GenerateRequest((10**6,), 5))


async def test_a_stream_that_is_left_is_aborted_on_the_server(
    server: ServerProcess, make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    async with aclosing(engine.stream(GenerateRequest(PROMPT, 3000, ignore_eos=True))) as chunks:
        async for chunk in chunks:
            assert chunk.finish_reason is None
            break
    client = client_of(engine.servers[0])
    async with asyncio.timeout(60):
        while (await client.loads())["num_running_reqs"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the scheduler announces nothing
    assert engine.servers[0].num_running == 0


async def test_the_engine_contract_is_kept(server: ServerProcess, make_engine: MakeEngine) -> None:
    engine = await make_engine(server.address, is_started=False)
    await check_engine(engine, prompt=PROMPT)


async def test_a_label_only_update_names_new_tokens_without_a_pause(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    await engine.update_weights(WeightUpdate(1, None))
    result = await engine.generate(GenerateRequest(PROMPT, 4, ignore_eos=True))
    assert (engine.version, set(result.versions)) == (1, {1})
    assert worst_error(PROMPT, result, [checkpoints[0]] * 2) < 1e-3


async def test_the_prefix_cache_serves_later_turns_until_the_weights_change(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    first = await engine.generate(GenerateRequest(PROMPT * 3, 20, ignore_eos=True, session="s"))
    assert first.num_cached == 0
    second_prompt = (*PROMPT * 3, *first.tokens, *PROMPT)
    turn = GenerateRequest(second_prompt, 5, ignore_eos=True, session="s")
    shared = len(PROMPT) * 3 + len(first.tokens) - 1  # the last sampled token was never computed
    assert (await engine.generate(turn)).num_cached >= shared
    await engine.update_weights(WeightUpdate(1, None))
    assert (await engine.generate(turn)).num_cached >= shared, "flushed for a label"
    await engine.update_weights(weights(checkpoints[1], 2))
    assert (await engine.generate(turn)).num_cached == 0


async def test_an_answer_is_json_of_its_schema_also_when_weights_change_in_it(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    assert engine.info.constrains_json
    await engine.update_weights(weights(checkpoints[1], 1))
    version, num_flags = 1, 60
    result: GenerateResult | None = None
    while result is None or set(result.versions) != {version - 1, version}:
        # On a busy machine an answer may be complete before the weights are there: a longer one follows.
        assert num_flags <= 240
        result = await _answer_over_an_update(engine, num_flags, checkpoints, version + 1)
        version, num_flags = version + 1, 2 * num_flags
    assert result.finish_reason is FinishReason.STOP
    answer = json.loads(engine._decode([t for t in result.tokens if t < 256]))
    assert len(answer["flags"]) == num_flags // 2
    assert answer["colour"] in ("red", "blue")


async def _answer_over_an_update(
    engine: SGLangEngine, num_flags: int, checkpoints: list[Path], version: int
) -> GenerateResult:
    """An answer of JSON. The weights of `version` are on their way as soon as it has begun."""
    flags = {
        "type": "array",
        "items": {"type": "boolean"},
        "minItems": num_flags,
        "maxItems": num_flags,
    }
    schema = {
        "type": "object",
        "properties": {"flags": flags, "colour": {"enum": ["red", "blue"]}},
        "required": ["flags", "colour"],
        "additionalProperties": False,
    }
    sampled: list[GenerateChunk] = []
    update: asyncio.Task[None] | None = None
    async for chunk in engine.stream(GenerateRequest(PROMPT, 3000, json_schema=schema)):
        sampled.append(chunk)
        if len(sampled) == 20:
            other = checkpoints[2 - version % 2]
            update = asyncio.create_task(engine.update_weights(weights(other, version)))
    assert update is not None
    await update
    return await collect(_replayed(sampled))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "nonsense"}, 'Unsupported type "nonsense"'),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "Cannot find field nowhere"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems would be ignored"),
    ],
)
async def test_a_schema_that_cannot_be_enforced_is_the_fault_of_the_request(
    schema: dict[str, object], why: str, server: ServerProcess, make_engine: MakeEngine
) -> None:
    engine = await make_engine(server.address)
    with pytest.raises(UnsupportedSchemaError, match=why) as refused:
        await engine.generate(GenerateRequest(PROMPT, 20, json_schema=schema))
    assert ".cc" not in str(refused.value)
    assert engine.num_failovers == 0
    assert engine.servers[0].state == "ready"
