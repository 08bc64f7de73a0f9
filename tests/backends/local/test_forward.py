"""Our forward computes what transformers computes."""

from pathlib import Path

import pytest
import torch

from areal_sdk.backends.local.architecture import Architecture
from areal_sdk.backends.local.core import CoreOptions, EngineCore
from areal_sdk.backends.local.kv import KVRows
from areal_sdk.backends.local.linear import Linear, can_pack
from areal_sdk.backends.local.loader import open_weights
from areal_sdk.backends.local.model import ForwardInput, Model, PrefillSpan
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from tests.backends.local.reference import FAMILIES, Reference, make_checkpoint, run

PROMPT = tuple(range(5, 90))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_match_transformers(
    family: str, packed: bool, tmp_path: Path
) -> None:
    cpu = torch.device("cpu")
    if packed and not can_pack(cpu, torch.float32):
        pytest.skip("this CPU's torch does not pack weights")
    directory = make_checkpoint(tmp_path, family)
    architecture = Architecture.load(directory)
    model = Model(architecture, device=cpu, dtype=torch.float32, packed=packed)
    open_weights(directory, architecture).copy_into(model)
    kv = KVRows(
        num_layers=architecture.num_layers,
        num_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        max_rows=1,
        max_length=128,
        budget_tokens=128,
        device=cpu,
        dtype=torch.float32,
    )
    positions = torch.arange(len(PROMPT))
    span = PrefillSpan(slice(0, len(PROMPT)), 0, len(PROMPT), None)
    index = kv.index(torch.zeros_like(positions), positions)
    step = ForwardInput(torch.tensor(PROMPT), positions, index, [span], positions)

    ours = model.forward(step, kv).log_softmax(-1)

    theirs = Reference(directory).logits(PROMPT).log_softmax(-1)
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_logprobs_of_every_family_match_a_full_forward(family: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, family)
    core = EngineCore(directory, CoreOptions(kv_memory_gb=0.1))
    request = GenerateRequest(PROMPT, 60, temperature=0.7, seed=1, ignore_eos=True)

    (outcome,) = run(core, core.add(request))

    expected = Reference(directory).logprobs(PROMPT, outcome.tokens, temperature=0.7)
    assert len(outcome.tokens) == 60
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_bfloat16_logprobs_are_as_close_to_float32_as_those_of_transformers(
    checkpoint: Path, reference: Reference
) -> None:
    core = EngineCore(checkpoint, CoreOptions(kv_memory_gb=0.1, dtype="bfloat16"))
    (outcome,) = run(core, core.add(GenerateRequest(PROMPT, 60, seed=1, ignore_eos=True)))

    exact = torch.tensor(reference.logprobs(PROMPT, outcome.tokens))
    theirs = Reference(checkpoint)
    theirs.model.to(torch.bfloat16)
    error = (torch.tensor(outcome.logprobs) - exact).abs().mean()
    their_error = (torch.tensor(theirs.logprobs(PROMPT, outcome.tokens)) - exact).abs().mean()

    assert error < 1.5 * their_error


def test_a_packed_projection_equals_a_plain_one() -> None:
    cpu = torch.device("cpu")
    if not can_pack(cpu, torch.float32):
        pytest.skip("this CPU's torch does not pack weights")
    parts = [torch.randn(7, 24), torch.randn(9, 24)]
    biases = [torch.randn(7), torch.randn(9)]
    x = torch.randn(5, 24)
    results = []
    for packed in (False, True):
        linear = Linear(24, 16, has_bias=True, device=cpu, dtype=torch.float32, packed=packed)
        linear.load(parts, biases)
        results.append(linear(x))
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], x @ torch.cat(parts).T + torch.cat(biases))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None}, "yarn"),
    ],
)
def test_what_the_forward_would_get_wrong_is_refused_by_name(
    change: dict[str, object], named: str, checkpoint: Path
) -> None:
    import json

    config = json.loads((checkpoint / "config.json").read_text())
    with pytest.raises(EngineError, match=named) as caught:
        Architecture.from_config({**config, **change})
    assert "SGLang" in str(caught.value)


def test_rope_of_older_checkpoints_is_read() -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 10,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1234.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    rope = Architecture.from_config(config).rope
    assert (rope.theta, rope.kind, rope.factor) == (1234.0, "linear", 2.0)
