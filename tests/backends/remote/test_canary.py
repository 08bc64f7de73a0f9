"""The logprobs that servers are held to are those of plain transformers, experts included."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from areal_sdk.backends.remote.weights.sender_process import Sender
from areal_sdk.errors import ConfigError
from tests.toolbox.families import saved

TOKENS, CANDIDATES = [5, 6, 7], [3, 30, 60]


def sender_of(model: Path, published: Path) -> Sender:
    sender = Sender(
        model, dtype="auto", bucket_bytes=2**20, device="cpu", fused={}, vocabulary_multiple=64
    )
    sender.open(str(published), checksum="", contents="all")
    return sender


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "qwen2_moe", "mixtral"])
def test_the_canary_says_what_transformers_says(family: str, tmp_path: Path) -> None:
    model = saved(tmp_path, family)
    sender = sender_of(model, model / "model.safetensors")
    found = sender.canary(TOKENS, CANDIDATES)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logprobs = torch.log_softmax(plain(torch.tensor([TOKENS])).logits[0, -1], -1)
    assert found == pytest.approx(logprobs[CANDIDATES].tolist(), abs=1e-5)


def test_published_weights_without_an_expert_are_refused(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "qwen3_moe")
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.2.down_proj.weight"]
    save_file(tensors, tmp_path / "published.safetensors")
    sender = sender_of(model, tmp_path / "published.safetensors")
    with pytest.raises(ConfigError, match=r"do not fit.*missing .*experts\.2\.down_proj"):
        sender.canary(TOKENS, CANDIDATES)
