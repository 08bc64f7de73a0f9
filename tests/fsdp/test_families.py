"""Every family that the trainer claims, against its own plain forward."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from areal_sdk.algorithms.batch import make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.backends.local.forward.architecture import SUPPORTED
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.checkpoint import export_model
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.checkpoint import stored_dtypes
from areal_sdk.models.families import TRAINED_FAMILIES, check_trained, stored_dtype
from areal_sdk.models.tiny import make_tiny_model
from tests.backends.sglang.served import SERVED
from tests.docs.blocks import blocks
from tests.toolbox.families import SIZE, VARIANTS, WINDOW, edited, saved

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_and_gradients_of_every_trained_family_equal_the_plain_forward(
    variant: str, tmp_path: Path
) -> None:
    family, fields = VARIANTS[variant]
    directory = saved(tmp_path / "model", family, **fields)
    policy = load_policy(directory)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 64, 9).tolist()
    rows = [[*prompt, *rng.integers(3, 64, n).tolist()] for n in (4, 4, 7)]
    examples = [
        made
        for row in rows
        if (made := make_demonstration(row, [i >= 9 for i in range(len(row))])) is not None
    ]
    trees = build_trees([example.inputs for example in examples], max_tokens=1000)
    logprobs, _ = policy(make_batch(trees, examples, version=0))
    expected = []
    for row in rows:
        tokens = torch.tensor(row)
        distributions = torch.log_softmax(plain(tokens[None]).logits[0, :-1], -1)
        expected.append(distributions.gather(1, tokens[1:, None])[8:, 0])
    reference = torch.cat(expected)
    # The tree puts siblings in another order; no two of these logprobs are equal.
    assert (logprobs.sort().values - reference.sort().values).abs().max() < 1e-4
    torch.autograd.backward(logprobs.sum())
    torch.autograd.backward(reference.sum())
    ours = policy.named_weights()
    assert len(policy.layers) == SIZE["num_hidden_layers"]  # what FSDP shards one by one
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(ours[name].grad, parameter.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_what_is_published_and_exported_of_every_trained_family_is_a_checkpoint_like_its_own(
    family: str, tmp_path: Path
) -> None:
    directory = saved(tmp_path / "model", family)
    trainer = RankTrainer(TrainerSpec(directory))
    publisher = Publisher(tmp_path / "published", dtype=torch.float32)

    publisher.publish(trainer.policy, 1, is_writer=True)
    export_model(trainer, tmp_path / "export", dtype=torch.float32)

    assert stored_dtypes(tmp_path / "published") == stored_dtypes(directory)
    assert stored_dtypes(tmp_path / "export") == stored_dtypes(directory)
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "export", output_loading_info=True
    )
    assert not any(report.values()), report
    stored = load_file(directory / "model.safetensors")
    for path in (*(tmp_path / "published").iterdir(), tmp_path / "export" / "model.safetensors"):
        for name, tensor in load_file(path).items():
            assert torch.equal(tensor, stored[name]), name
    original = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, original[name]), name


@pytest.mark.parametrize(
    ("family", "fields", "told"),
    [
        ("gemma3", {}, "'gemma3' models, which also see; save the text part"),
        ("gpt_oss", {}, "'gpt_oss' models, whose attention .*sinks"),
        ("gpt_neox", {}, "'gpt_neox' models"),
        (
            "qwen3",
            {"layer_types": ["full_attention", "linear_attention"]},
            "kinds linear_attention",
        ),
        ("gemma3_text", {"use_bidirectional_attention": True}, "see later ones"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'dynamic'",
        ),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 2.0},
                }
            },
            "rope_type 'dynamic'",
        ),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "capped .final_logit_softcapping"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "capped .attn_logit_softcapping"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantized"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_trained_is_refused_by_name_with_the_list_of_what_is(
    family: str, fields: Mapping[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **fields}))
    with pytest.raises(ConfigError, match=f"does not train .*{told}.*: arcee, .*, vaultgemma"):
        check_trained(tmp_path)
    with pytest.raises(ConfigError, match=told):
        load_policy(tmp_path)


def test_a_checkpoint_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"no \.safetensors file: convert"):
        check_trained(tmp_path)


def test_weights_that_the_files_lack_are_not_made_up(tmp_path: Path) -> None:
    directory = saved(tmp_path, "llama")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"no model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(directory)


def test_two_output_layers_of_which_the_config_ties_one_are_refused(tmp_path: Path) -> None:
    directory = edited(saved(tmp_path, "llama"), tie_word_embeddings=True)
    with pytest.raises(ConfigError, match="set tie_word_embeddings to false"):
        load_policy(directory)


def test_the_page_on_models_says_how_the_text_part_of_gemma3_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {name: SIZE[name] for name in SIZE.keys() - {"pad_token_id", "bos_token_id"}}
    seeing = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = AutoConfig.for_model("gemma3", text_config={**size, **WINDOW}, vision_config=seeing)
    monkeypatch.chdir(tmp_path)
    make_tiny_model(tmp_path / "gemma-3-4b-it")
    whole = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    whole.save_pretrained("gemma-3-4b-it")
    with pytest.raises(ConfigError, match="save the text part"):
        check_trained(Path("gemma-3-4b-it"))
    [how] = blocks(PAGE, "py")
    exec(how.code, {})
    check_trained(Path("gemma-3-4b-text"))
    assert stored_dtype(Path("gemma-3-4b-text")) == "bfloat16"
    assert (tmp_path / "gemma-3-4b-text" / "chat_template.jinja").is_file()
    policy = load_policy(Path("gemma-3-4b-text"))
    for name, weight in whole.model.language_model.named_parameters():
        assert torch.equal(policy.model.model.get_parameter(name), weight.float()), name


def test_the_page_on_models_lists_the_families_that_are_trained_and_who_samples_them() -> None:
    table = PAGE.read_text().split("| sampled by SGLang |\n|---|---|---|\n")[1].split("\n\n")[0]
    by_local, by_sglang, listed = set[str](), set[str](), list[str]()
    for row in table.splitlines():
        names, local, sglang = (cell.strip() for cell in row.strip("|").split("|"))
        listed += names.split(", ")
        by_local |= {*names.split(", ")} if local == "yes" else set()
        by_sglang |= {*names.split(", ")} if sglang == "yes" else set()
    assert sorted(listed) == sorted(TRAINED_FAMILIES)
    assert by_local == set(SUPPORTED)
    assert by_sglang == set(SERVED)
