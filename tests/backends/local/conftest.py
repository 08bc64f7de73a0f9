from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.backends.local.reference import Reference, make_checkpoint, nudge


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3."""
    return make_checkpoint(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="session")
def new_weights(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights for `checkpoint` that give clearly different logprobs."""
    return nudge(checkpoint, tmp_path_factory.mktemp("update") / "v1.safetensors")


@pytest.fixture(scope="session")
def new_reference(checkpoint: Path, new_weights: Path) -> Reference:
    return Reference(checkpoint, new_weights)
