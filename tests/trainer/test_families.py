"""Every dense family that the trainer claims, against its own plain forward."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from areal_sdk.algorithms.batch import make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.errors import ConfigError
from areal_sdk.trainer.policy import load_policy

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
FAMILIES = [
    LlamaConfig(**SIZE, tie_word_embeddings=False),
    LlamaConfig(**SIZE, tie_word_embeddings=True),
    MistralConfig(**SIZE, sliding_window=None),
    Qwen2Config(**SIZE),
    Qwen3Config(**SIZE),
]


def saved(config: PretrainedConfig, directory: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_tree_logprobs_and_gradients_equal_the_plain_forward(
    config: PretrainedConfig, tmp_path: Path
) -> None:
    directory = saved(config, tmp_path / "model")
    policy = load_policy(directory)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 64, 9).tolist()
    rows = [[*prompt, *rng.integers(0, 64, n).tolist()] for n in (4, 4, 7)]
    examples = [
        made
        for row in rows
        if (made := make_demonstration(row, [i >= 9 for i in range(len(row))])) is not None
    ]
    trees = build_trees([example.inputs for example in examples], max_tokens=1000)
    logprobs, _ = policy(make_batch(trees, examples, version=0))
    total = torch.zeros(())
    for row in rows:
        tokens = torch.tensor(row)
        distributions = torch.log_softmax(plain(tokens[None]).logits[0, :-1], -1)
        total = total + distributions.gather(1, tokens[1:, None])[8:].sum()
    torch.testing.assert_close(logprobs.sum(), total)
    torch.autograd.backward(logprobs.sum())
    torch.autograd.backward(total)
    ours = policy.named_weights()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(ours[name].grad, parameter.grad, atol=1e-5, rtol=1e-4)


def test_a_model_with_sliding_windows_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    directory = saved(Gemma2Config(**SIZE), tmp_path / "model")
    with pytest.raises(ConfigError, match="needs full attention in every layer"):
        load_policy(directory)


def test_a_mistral_with_a_sliding_window_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    directory = saved(MistralConfig(**SIZE, sliding_window=16), tmp_path / "model")
    with pytest.raises(ConfigError, match="sliding"):
        load_policy(directory)
