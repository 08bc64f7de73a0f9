"""A model that is filled tensor by tensor is the one that transformers loads."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_sdk.config import LoraSection
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.loading import fill
from areal_sdk.fsdp.policy import Policy, load_policy
from tests.toolbox.families import VARIANTS, edited, saved

CPU = torch.device("cpu")


def assert_equal(found: Policy, expected: Policy) -> None:
    for kind in ("named_parameters", "named_buffers"):
        mine, theirs = dict(getattr(found, kind)()), dict(getattr(expected, kind)())
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert mine[name].dtype == tensor.dtype, name
            assert torch.equal(mine[name], tensor), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_filled_model_has_the_tensors_of_a_loaded_one(variant: str, tmp_path: Path) -> None:
    family, fields = VARIANTS[variant]
    directory = saved(tmp_path, family, **fields)
    policy = load_policy(directory, is_filled=False)
    assert all(parameter.is_meta for parameter in policy.parameters())
    fill(policy, policy, directory, CPU)
    assert_equal(policy, load_policy(directory))


def test_a_filled_model_gets_the_adapter_that_a_loaded_one_gets(tmp_path: Path) -> None:
    directory = saved(tmp_path, "qwen3")
    lora = LoraSection(rank=4)
    policy = load_policy(directory, lora=lora, seed=3, is_filled=False)
    fill(policy, policy, directory, CPU)
    assert_equal(policy, load_policy(directory, lora=lora, seed=3))


@pytest.mark.parametrize("is_filled", [True, False])
def test_tied_weights_stay_tied_on_a_device_whose_modules_get_new_parameters(
    is_filled: bool, tmp_path: Path
) -> None:
    directory = saved(tmp_path, "llama", tie_word_embeddings=True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # as torch does there
    try:
        policy = load_policy(directory, is_filled=is_filled)
        if not is_filled:
            fill(policy, policy, directory, CPU)
        policy.to(CPU)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert policy.is_tied
    assert_equal(policy, load_policy(directory))


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    directory = edited(saved(tmp_path, "llama"), intermediate_size=40)
    policy = load_policy(directory, is_filled=False)
    with pytest.raises(ConfigError, match=r"layers\.0\.mlp\.\w+_proj\.weight has shape"):
        fill(policy, policy, directory, CPU)


def test_two_output_layers_that_differ_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    directory = edited(saved(tmp_path, "llama"), tie_word_embeddings=True)
    with pytest.raises(ConfigError, match="set tie_word_embeddings to false"):
        load_policy(directory, is_filled=False)
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    assert load_policy(directory, is_filled=False).is_tied
