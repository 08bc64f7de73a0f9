"""Our forward computes what transformers computes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.architecture import Architecture
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.backends.local.forward.kv_cache import KVRows
from areal_sdk.backends.local.forward.linear import Linear, can_pack
from areal_sdk.backends.local.forward.model import (
    DecodeRun,
    ForwardInput,
    Model,
    PrefillSpan,
    decode_attention,
)
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.errors import EngineError
from tests.backends.local.reference import FAMILIES, MIXTURE, Reference, make_checkpoint, run

PROMPT = tuple(range(5, 90))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_match_transformers(
    family: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "areal_sdk.backends.local.forward.linear._SMALL_FP32", 0
    )  # pack tiny ones too
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
    core = EngineCore(directory, LocalOptions(kv_memory_gb=0.1))
    request = GenerateRequest(PROMPT, 60, Sampling(temperature=0.7), seed=1, ignore_eos=True)

    (outcome,) = run(core, core.add(request))

    expected = Reference(directory).logprobs(PROMPT, outcome.tokens, temperature=0.7)
    assert len(outcome.tokens) == 60
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


def test_bfloat16_logprobs_are_as_close_to_float32_as_those_of_transformers(
    checkpoint: Path, reference: Reference
) -> None:
    core = EngineCore(checkpoint, LocalOptions(kv_memory_gb=0.1, dtype="bfloat16"))
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
    parts = [torch.randn(150, 240), torch.randn(170, 240)]
    biases = [torch.randn(150), torch.randn(170)]
    x = torch.randn(5, 240)
    results = []
    for packed in (False, True):
        linear = Linear(240, 320, has_bias=True, device=cpu, dtype=torch.float32, packed=packed)
        assert linear.is_packed is packed
        linear.load(parts, biases)
        results.append(linear(x))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        results[0], x @ torch.cat(parts).T + torch.cat(biases), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("num_rows", [3, 20], ids=["fused", "products"])
def test_decoding_attends_to_each_rows_own_length(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((2, num_rows + 3, 2, 64, 16), generator=generator).bfloat16()
    queries = torch.randn((num_rows, 2, 3, 16), generator=generator).bfloat16()
    lengths = torch.randint(1, 50, (num_rows,), generator=generator)
    longest = int(lengths.max())
    hidden = torch.arange(longest) >= lengths[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None]
    run = DecodeRun(slice(0, num_rows), slice(2, 2 + num_rows), longest, mask)

    mixed = decode_attention(queries, cache, run).float()

    for row, length in enumerate(lengths.tolist()):
        keys, values = cache[:, 2 + row, :, :length].float()
        scores = queries[row].float() @ keys.transpose(1, 2) / 4
        expected = (scores.softmax(-1) @ values).flatten()
        torch.testing.assert_close(mixed[row], expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("num_rows", [3, 20], ids=["fused", "products"])
def test_rows_with_drafts_attend_to_what_is_before_each_token(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn((2, num_rows + 3, 2, 64, 16), generator=generator).bfloat16()
    widths = [1 + row % 3 for row in range(num_rows)]
    starts = torch.randint(0, 50, (num_rows,), generator=generator)
    visible = starts[:, None] + torch.arange(1, 4)
    longest = int(visible.max())
    hidden = torch.arange(longest) >= visible[:, :, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None]
    places = torch.tensor([3 * row + i for row in range(num_rows) for i in range(widths[row])])
    queries = torch.randn((len(places), 2, 3, 16), generator=generator).bfloat16()
    rows = slice(2, 2 + num_rows)
    run = DecodeRun(slice(0, len(places)), rows, longest, mask, 3, places)

    mixed = decode_attention(queries, cache, run).float()

    for token, place in enumerate(places.tolist()):
        row, length = 2 + place // 3, visible.flatten()[place]
        keys, values = cache[:, row, :, :length].float()
        scores = queries[token].float() @ keys.transpose(1, 2) / 4
        expected = (scores.softmax(-1) @ values).flatten()
        torch.testing.assert_close(mixed[token], expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_parameters": None}, "yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 3]}}, "mrope_section"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"logit_scale": 0.0625}, "logit_scale 0.0625"),
        ({"logits_scaling": 8.0}, "logits_scaling 8.0"),
        ({"num_local_experts": 8}, "num_local_experts 8"),
        ({**MIXTURE, "mlp_only_layers": [0]}, "dense layers among those of experts"),
        ({**MIXTURE, "decoder_sparse_step": 2}, "dense layers among those of experts"),
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


def test_an_output_layer_that_is_tied_and_differs_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "qwen3-tied")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    architecture = Architecture.load(directory)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    open_weights(directory, architecture)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, path)
    with pytest.raises(EngineError, match=r"lm_head\.weight differs from the embedding"):
        open_weights(directory, architecture)


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
