"""The device, where this machine can compile it, and tiny models.

These tests run in a process of their own (`test_apart.py`): torch asks for the devices once, at the first backward pass
of a process, and the device would stay for the tests after them. To run them by hand:
`AREAL_SDK_PRETENDED=1 pytest tests/pretended`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from areal_sdk.models.tiny import make_tiny_model
from tests.backends.local.reference import make_checkpoint
from tests.pretended import NAME, install
from tests.toolbox.families import saved

ALONE = "AREAL_SDK_PRETENDED"
OWN = ["test_counts.py", "test_device.py", "test_engine.py", "test_trainer.py"]
collect_ignore = ["test_apart.py"] if os.environ.get(ALONE) else OWN

MIXTURE = {"vocab_size": 263, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    install()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.device(NAME)
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def dense_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the trainer and the engine load."""
    return make_tiny_model(tmp_path_factory.mktemp("dense"), num_layers=2)


@pytest.fixture(scope="session")
def mixture_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts for the trainer."""
    return saved(tmp_path_factory.mktemp("mixture"), "qwen3_moe", **MIXTURE)


@pytest.fixture(scope="session")
def served_mixture_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts for the engine, whose weights are all random."""
    return make_checkpoint(tmp_path_factory.mktemp("served"), "qwen3-moe")
