"""Convert a quantised Llama GGUF file to a bfloat16 checkpoint directory.

Written against the GGUF format rather than through transformers, whose reader keeps the weights
packed and cannot save them again; it is also ten times faster.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from areal_sdk.errors import ConfigError
from areal_sdk.models.checkpoint import (
    Float32,
    Weight,
    write_json,
    write_safetensors,
    write_tokenizer_config,
)

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert_gguf(gguf_path: Path, directory: Path) -> None:
    """Write config, bfloat16 weights, tokenizer and chat template of `gguf_path` to `directory`."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    if (found := _field(reader, "general.architecture")) != "llama":
        raise ConfigError(f"{gguf_path.name} holds a {found!r} model; only 'llama' is converted")
    config = _config(reader)
    write_json(directory / "config.json", config)
    _write_tokenizer(reader, directory)
    write_safetensors(directory / "model.safetensors", _weights(reader, config), dtype="BF16")


def _config(reader: "GGUFReader") -> dict[str, Any]:
    def llama(key: str) -> Any:
        return _field(reader, f"llama.{key}")

    num_heads = llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": llama("vocab_size"),
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("embedding_length") // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": llama("context_length"),
        # stored as float32: 1e-5 reads back as 9.999999747378752e-06
        "rms_norm_eps": float(f"{llama('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(llama("rope.freq_base")),
        "tie_word_embeddings": not any(t.name == "output.weight" for t in reader.tensors),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    }


def _weights(reader: "GGUFReader", config: dict[str, Any]) -> Iterator[Weight]:
    # GGUF stores the rows of q and k so that rotary pairs are neighbours; transformers rotates
    # halves, so each head's rows go back from (pair, half) to (half, pair).
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if tensor.name in _TOP_LEVEL:
            yield Weight(_TOP_LEVEL[tensor.name], shape, _loader(tensor, shape, None))
            continue
        _, layer, part, kind = tensor.name.split(".")
        name = f"model.layers.{layer}.{_IN_BLOCK[part]}.{kind}"
        yield Weight(name, shape, _loader(tensor, shape, heads.get(part)))


def _loader(
    tensor: "ReaderTensor", shape: tuple[int, ...], num_heads: int | None
) -> Callable[[], Float32]:
    def load() -> Float32:
        from gguf import dequantize

        array: Float32 = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        array = array.reshape(shape)
        if num_heads is not None:
            by_pair = array.reshape(num_heads, -1, 2, shape[1])
            array = by_pair.swapaxes(1, 2).reshape(shape)
        return array

    return load


def _write_tokenizer(reader: "GGUFReader", directory: Path) -> None:
    if (found := _field(reader, "tokenizer.ggml.pre")) != "smollm":
        raise ConfigError(f"the GGUF file's pre-tokenizer {found!r} is not known; only 'smollm' is")
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges: list[str] = _field(reader, "tokenizer.ggml.merges")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(a, b) for a, b in (merge.split(" ") for merge in merges)],
        )
    )
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(directory / "tokenizer.json"))

    def special(name: str) -> str:
        token_id: int = _field(reader, f"tokenizer.ggml.{name}_token_id")
        return tokens[token_id]

    write_tokenizer_config(
        directory,
        bos_token=special("bos"),
        eos_token=special("eos"),
        pad_token=special("padding"),
        unk_token=special("unknown"),
    )
    template: str = _field(reader, "tokenizer.chat_template")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")


def _field(reader: "GGUFReader", key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ConfigError(
            f"the GGUF file has no {key!r}: it is damaged, or of a kind we do not know"
        )
    return field.contents()
