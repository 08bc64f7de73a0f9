"""SGLang and the embedded engine are the same policy."""

from pathlib import Path

import pytest

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.backends.remote.starting.processes import ServerProcess
from areal_sdk.engine import GenerateRequest, Sampling
from tests.backends.sglang.conftest import MakeEngine

PROMPTS = [tuple(text.encode()) for text in ("What is 11+22?", "a", "The weather today", "{}[]")]


@pytest.mark.slow
async def test_greedy_tokens_and_logprobs_are_those_of_the_local_engine(
    server: ServerProcess, checkpoints: list[Path], make_engine: MakeEngine, tmp_path: Path
) -> None:
    sglang = await make_engine(server.address)
    local = LocalEngine(
        checkpoints[0], log_dir=tmp_path, options=LocalOptions(dtype="float32", device="cpu")
    )
    await local.start()
    try:
        assert local.info.stop_tokens == sglang.info.stop_tokens
        assert local.info.vocab_size == sglang.info.vocab_size
        for prompt in PROMPTS:
            request = GenerateRequest(prompt, 64, Sampling(temperature=0.0))
            ours, theirs = await local.generate(request), await sglang.generate(request)
            assert ours.tokens == theirs.tokens
            assert ours.finish_reason == theirs.finish_reason
            pairs = zip(ours.logprobs, theirs.logprobs, strict=True)
            assert max(abs(one - other) for one, other in pairs) < 1e-3
    finally:
        await local.aclose()
