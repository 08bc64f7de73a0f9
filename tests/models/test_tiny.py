"""The tiny model: real for transformers, the same every time, made without torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.models import make_tiny_model
from areal_sdk.models.tiny import MARKUP_TOKENS, SPECIAL_TOKENS

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(tiny)


def test_the_same_arguments_make_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again = make_tiny_model(tmp_path / "again")
    for file in sorted(tiny.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name


def test_another_seed_makes_another_model(tiny: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", seed=1)
    assert (other / "model.safetensors").read_bytes() != (tiny / "model.safetensors").read_bytes()


def test_transformers_loads_every_weight(tiny: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tiny, output_loading_info=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.num_parameters() == 357_888
    assert model.config.rope_parameters["rope_theta"] == 10000.0


def test_a_token_below_256_is_that_byte(tokenizer: Any) -> None:
    text = "".join(map(chr, range(1, 128))) + " é 😀\n\n  x"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text


def test_special_tokens_vanish_when_decoding_and_markup_stays(tokenizer: Any) -> None:
    for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS):
        ids = tokenizer.encode(token, add_special_tokens=False)
        assert len(ids) == 1, token
        shown = tokenizer.decode(ids, skip_special_tokens=True)
        assert shown == ("" if token in SPECIAL_TOKENS else token)


def test_every_sampled_id_has_a_token(tiny: Path, tokenizer: Any) -> None:
    config = json.loads((tiny / "config.json").read_text())
    assert config["vocab_size"] == len(tokenizer)
    assert tokenizer.convert_ids_to_tokens(config["eos_token_id"]) == "<|im_end|>"


def test_the_chat_template_writes_tools_calls_and_results(tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    text = tokenizer.apply_chat_template(
        messages, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    system, _, rest = text.partition("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.dumps(TOOLS[0]) in system
    written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    results = "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
    assert rest == (
        "<|im_start|>user\n1+1?<|im_end|>\n"
        f"<|im_start|>assistant\n{written}\n{written}<|im_end|>\n"
        f"<|im_start|>user\n{results}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_longer_conversation_renders_as_a_longer_text(tokenizer: Any) -> None:
    messages: list[dict[str, str]] = []
    previous = ""
    for role in ("user", "assistant", "user", "assistant"):
        messages.append({"role": role, "content": f"said by {role}"})
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        assert text.startswith(previous)
        previous = text


def test_naming_a_model_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from areal_sdk.models import resolve_model\n"
        "resolve_model('tiny', cache_dir=pathlib.Path(sys.argv[1]))\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
