"""GGUF to safetensors: a small file written here, and SmolLM2 itself (slow, needs an index)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.models import resolve_model
from areal_sdk.models.checkpoint import to_bfloat16
from areal_sdk.models.smollm2 import convert_gguf

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HIDDEN, INTER, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 260


def _write_gguf(path: Path, *, architecture: str = "llama", pre: str = "smollm") -> dict[str, Any]:
    """A one-layer Llama as llama.cpp stores it; returns the rows of q and k before its shuffle."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    plain = {
        "q": random(HIDDEN, HIDDEN),
        "k": random(HIDDEN * KV_HEADS // HEADS, HIDDEN),
    }

    def shuffled(rows: Any, heads: int) -> Any:
        halves = rows.reshape(heads, 2, -1, HIDDEN)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ"]
    tokens += ["ab", *(chr(0x4E00 + i) for i in range(VOCAB - 5 - 26))]
    tokens += [chr(ord("a") + i) for i in range(26)]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["a b"])
    for kind, number in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{kind}_token_id")(number)
    writer.add_chat_template("{{ messages[0].content }}")
    for name, tensor in {
        "token_embd.weight": random(VOCAB, HIDDEN),
        "output_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.attn_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.attn_q.weight": shuffled(plain["q"], HEADS),
        "blk.0.attn_k.weight": shuffled(plain["k"], KV_HEADS),
        "blk.0.attn_v.weight": random(HIDDEN * KV_HEADS // HEADS, HIDDEN),
        "blk.0.attn_output.weight": random(HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.ffn_gate.weight": random(INTER, HIDDEN),
        "blk.0.ffn_up.weight": random(INTER, HIDDEN),
        "blk.0.ffn_down.weight": random(HIDDEN, INTER),
    }.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


def test_q_and_k_rows_come_back_in_transformers_order(tmp_path: Path) -> None:
    plain = _write_gguf(tmp_path / "small.gguf")
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(tmp_path / "small.gguf", out)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    attention = model.model.layers[0].self_attn
    for name, rows in (("q", plain["q"]), ("k", plain["k"])):
        expected = torch.from_numpy(rows).to(torch.bfloat16)
        assert torch.equal(getattr(attention, f"{name}_proj").weight, expected)


def test_the_tokenizer_and_its_template_come_along(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "small.gguf")
    convert_gguf(tmp_path / "small.gguf", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == 2
    ids = tokenizer.encode("ab a<|im_end|>", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == ["ab", "Ġ", "a", "<|im_end|>"]
    assert tokenizer.chat_template == "{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"architecture": "gemma"}, "only 'llama' is converted"),
        ({"pre": "qwen2"}, "'qwen2' is not known"),
    ],
)
def test_what_we_cannot_convert_is_refused(
    tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    _write_gguf(tmp_path / "small.gguf", **options)
    with pytest.raises(ConfigError, match=complaint):
        convert_gguf(tmp_path / "small.gguf", tmp_path)


def test_bfloat16_rounds_as_torch_does() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    ties = (np.arange(500, dtype=np.uint32) << 16) + np.uint32(0x8000)
    values = np.concatenate([values, ties.view(np.float32)])
    values = values[np.isfinite(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_bfloat16(values), expected)


@pytest.mark.slow
def test_smollm2_answers_like_the_model_it_came_from(tmp_path: Path) -> None:
    directory = resolve_model("smollm2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
    assert tokenizer.tokenize("12+345") == ["1", "2", "+", "3", "4", "5"]
