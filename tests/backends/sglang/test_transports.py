"""Every transport, every interrupt mode: the right weights, on the right side of every token."""

import asyncio
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.config import EngineSection
from areal_sdk.engine import GenerateRequest, GenerateResult
from areal_sdk.types import WeightUpdate
from areal_sdk_sglang.engine import SGLangEngine
from tests.backends.sglang.conftest import MakeEngine
from tests.backends.sglang.rescoring import worst_error
from tests.toolbox.waiting import until

pytestmark = pytest.mark.slow

PROMPT = tuple(b"transports")


def weights(checkpoint: Path, version: int) -> WeightUpdate:
    return WeightUpdate(version, str(checkpoint / "model.safetensors"))


@pytest.mark.parametrize("transport", ["disk", "tensor", "distributed"])
@pytest.mark.parametrize("interrupt", ["retract", "abort", "drain"])
async def test_weights_swap_in_the_middle_of_generations(
    transport: str,
    interrupt: str,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
) -> None:
    engine = await make_engine(server.address, transport=transport, interrupt=interrupt)
    by_version = [checkpoints[version % 3] for version in range(4)]
    results = await updated_three_times(engine, by_version)
    wrong = [checkpoints[(version + 1) % 3] for version in range(4)]
    for result in results:
        assert list(result.versions) == sorted(result.versions)
        assert result.num_stale_kv == 0
        assert worst_error(PROMPT, result, by_version) < 1e-3
        assert worst_error(PROMPT, result, wrong) > 0.05
    if interrupt != "drain":
        assert any(len(set(result.versions)) > 1 for result in results)


@pytest.mark.parametrize("transport", ["disk", "tensor", "distributed"])
async def test_an_update_of_some_tensors_leaves_the_others_as_they_were(
    transport: str,
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
    tmp_path: Path,
) -> None:
    """An adapter's updates are like this: some tensors are fused in the server with others that did
    not change."""
    engine = await make_engine(server.address, transport=transport)
    base = load_file(checkpoints[0] / "model.safetensors")
    by_version = [checkpoints[0]]
    for version in (1, 2):
        new = load_file(checkpoints[version] / "model.safetensors")
        part = {n: t for n, t in new.items() if n.endswith(("q_proj.weight", "down_proj.weight"))}
        directory = tmp_path / f"v{version}"
        shutil.copytree(checkpoints[0], directory)
        save_file(base | part, directory / "model.safetensors")
        by_version.append(directory)
        path = tmp_path / f"part-{version}.safetensors"
        save_file(part, path)
        await engine.update_weights(WeightUpdate(version, str(path), contents="changed"))
        result = await engine.generate(GenerateRequest(PROMPT, 20, ignore_eos=True))
        assert set(result.versions) == {version}
        assert worst_error(PROMPT, result, by_version) < 1e-3
        assert worst_error(PROMPT, result, [checkpoints[0]] * 3) > 0.01


async def test_in_place_swaps_say_so_and_mark_what_was_sampled_on_old_kv(
    server: ServerProcess,
    checkpoints: list[Path],
    make_engine: MakeEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await make_engine(server.address, engine=EngineSection(kv_on_update="keep"))
    assert "requests keep the KV of old weights" in caplog.text
    by_version = [checkpoints[version % 3] for version in range(4)]
    results = await updated_three_times(engine, by_version)
    mixed = [result for result in results if len(set(result.versions)) > 1]
    assert mixed
    for result in mixed:
        first = result.versions.count(result.versions[0])
        assert result.num_stale_kv == len(result.tokens) - first
        assert worst_error(PROMPT, prefix(result, first), by_version) < 1e-3
    fresh = await engine.generate(GenerateRequest(PROMPT, 20, ignore_eos=True))
    assert fresh.num_stale_kv == 0
    assert worst_error(PROMPT, fresh, by_version) < 1e-3


async def updated_three_times(engine: SGLangEngine, by_version: list[Path]) -> list[GenerateResult]:
    await engine.update_weights(weights(by_version[1], 1))  # starts what the transport needs
    results: list[GenerateResult] = []
    for version in (2, 3):
        request = GenerateRequest(PROMPT, 1500, ignore_eos=True)
        generations = [asyncio.create_task(engine.generate(request)) for _ in range(3)]
        await until_sampling(engine.servers[0], 3)
        await engine.update_weights(weights(by_version[version], version))
        results += await asyncio.gather(*generations)
    return results


async def until_sampling(member: Server, count: int) -> None:
    before = member.last_token_at
    await until(lambda: member.last_token_at > before and member.num_running == count)


def prefix(result: GenerateResult, length: int) -> GenerateResult:
    return GenerateResult(
        result.tokens[:length],
        result.logprobs[:length],
        result.versions[:length],
        result.finish_reason,
    )
