"""Whether two checkpoints of one model hold the same weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from areal_sdk.models.checkpoint import fingerprint

LARGE = (1024, 640)
"""A shape of over a megabyte in bfloat16, like the tensors of a real model."""


def saved(directory: Path, *, plus_one: str = "") -> Path:
    names = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight")
    weights = {name: torch.zeros(LARGE, dtype=torch.bfloat16) for name in names}
    if plus_one:
        weights[plus_one] += 1.0
    directory.mkdir()
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("trained", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_a_model_of_which_one_tensor_was_trained_is_another_model(
    tmp_path: Path, trained: str
) -> None:
    base = fingerprint(saved(tmp_path / "base"))
    assert fingerprint(saved(tmp_path / "copy")) == base
    assert fingerprint(saved(tmp_path / "merged", plus_one=trained)) != base
