"""Families that SGLang samples as transformers computes them."""

from pathlib import Path

import pytest

from areal_sdk.engine import GenerateRequest
from areal_sdk.models import make_tiny_model
from areal_sdk_sglang.engine import SGLangEngine
from areal_sdk_sglang.install import SGLangEnvironment
from areal_sdk_sglang.settings import SGLangSection
from tests.backends.sglang.conftest import start_server, wait_until_they_sample
from tests.backends.sglang.rescoring import worst_error
from tests.backends.sglang.served import SERVED
from tests.toolbox.families import saved

PROMPT = tuple(b"What is 11+22?")
NUM_TOKENS = 48
HEADS = {"hidden_size": 64, "head_dim": 16}


@pytest.mark.slow
@pytest.mark.parametrize("family", SERVED)
async def test_what_sglang_samples_rescores(
    family: str, environment: SGLangEnvironment, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")  # a tokenizer of 263 tokens
    saved(model, family, vocab_size=263, **HEADS)
    server = start_server(model, environment, log_path=tmp_path / "server.log")
    try:
        await wait_until_they_sample([server])
        settings = SGLangSection.read({"transport": "disk"})
        engine = SGLangEngine(model, [server.address], log_dir=tmp_path, settings=settings)
        try:
            await engine.start()
            request = GenerateRequest(PROMPT, NUM_TOKENS, ignore_eos=True)
            result = await engine.generate(request)
        finally:
            await engine.aclose()
    finally:
        await server.stop(grace_s=2.0)
    assert len(result.tokens) == NUM_TOKENS
    assert worst_error(PROMPT, result, [model]) < 1e-3
