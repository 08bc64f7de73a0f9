"""A random Qwen3 model of 0.36 M parameters with a byte vocabulary: real enough to train in a test.

Token i < 256 is byte i, so any text encodes, and a random model samples text that is often not
valid UTF-8. Needs numpy and tokenizers only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from areal_sdk.models.checkpoint import (
    Float32,
    Weight,
    write_json,
    write_safetensors,
    write_tokenizer_config,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Single tokens that decoding keeps as text."""

CHAT_TEMPLATE = """\
{%- macro block(role, content) -%}
<|im_start|>{{ role }}
{{ content }}<|im_end|>
{% endmacro -%}
{%- if tools -%}
    {%- set listed = namespace(text="") -%}
    {%- for tool in tools -%}
        {%- set listed.text = listed.text ~ "\\n" ~ (tool | tojson) -%}
    {%- endfor -%}
    {%- set preface = messages[0].content ~ "\\n\\n" if messages[0].role == "system" else "" -%}
    {{- block("system", preface ~ "Tools:\\n<tools>" ~ listed.text ~ "\\n</tools>\\n"
        ~ "Call one with <tool_call>\\n{\\"name\\": ..., \\"arguments\\": {...}}\\n</tool_call>") }}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "system" and tools and loop.first -%}
    {%- elif message.role == "tool" -%}
        {%- if loop.first or loop.previtem.role != "tool" -%}
            {{- "<|im_start|>user" }}
        {%- endif -%}
        {{- "\\n<tool_response>\\n" ~ message.content ~ "\\n</tool_response>" }}
        {%- if loop.last or loop.nextitem.role != "tool" -%}
            {{- "<|im_end|>\\n" }}
        {%- endif -%}
    {%- else -%}
        {%- set said = namespace(text=message.content or "") -%}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {%- set arguments = function.arguments if function.arguments is string
                else function.arguments | tojson -%}
            {%- set said.text = said.text ~ ("\\n" if said.text else "")
                ~ '<tool_call>\\n{"name": "' ~ function.name ~ '", "arguments": ' ~ arguments
                ~ "}\\n</tool_call>" -%}
        {%- endfor -%}
        {{- block(message.role, said.text) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" }}
{%- endif -%}
"""


def make_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    hidden_size: int = 96,
    intermediate_size: int = 256,
    num_layers: int = 3,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    max_context: int = 4096,
) -> Path:
    """Write a random model to `directory`, which may exist; the same arguments, the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(directory)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "pad_token_id": 256,
    }
    write_json(directory / "config.json", config)
    write_safetensors(directory / "model.safetensors", _weights(config, seed=seed), dtype="F32")
    return directory


def _weights(config: dict[str, Any], *, seed: int) -> list[Weight]:
    rng = np.random.default_rng(seed)
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    head_dim = config["head_dim"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim

    def weight(name: str, *shape: int) -> Weight:
        # Drawn here and now: the generator's order must not depend on the order of writing.
        array: Float32 = rng.normal(0.0, 0.02, shape).astype(np.float32)
        return Weight(name, shape, _always(array))

    def norm(name: str, size: int) -> Weight:
        return Weight(name, (size,), _always(np.ones(size, np.float32)))

    weights = [weight("model.embed_tokens.weight", config["vocab_size"], hidden)]
    weights += [norm("model.norm.weight", hidden)]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights += [
            norm(f"{prefix}.input_layernorm.weight", hidden),
            weight(f"{prefix}.self_attn.q_proj.weight", queries, hidden),
            weight(f"{prefix}.self_attn.k_proj.weight", keys, hidden),
            weight(f"{prefix}.self_attn.v_proj.weight", keys, hidden),
            weight(f"{prefix}.self_attn.o_proj.weight", hidden, queries),
            norm(f"{prefix}.self_attn.q_norm.weight", head_dim),
            norm(f"{prefix}.self_attn.k_norm.weight", head_dim),
            norm(f"{prefix}.post_attention_layernorm.weight", hidden),
            weight(f"{prefix}.mlp.gate_proj.weight", inter, hidden),
            weight(f"{prefix}.mlp.up_proj.weight", inter, hidden),
            weight(f"{prefix}.mlp.down_proj.weight", hidden, inter),
        ]
    return weights


def _always(array: Float32) -> Callable[[], Float32]:
    return lambda: array


def _write_tokenizer(directory: Path) -> int:
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    write_tokenizer_config(directory, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return tokenizer.get_vocab_size()


def _byte_vocabulary() -> dict[str, int]:
    """Each byte under the printable character that the ByteLevel pre-tokenizer gives it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    return vocabulary | {chr(256 + i): byte for i, byte in enumerate(others)}
