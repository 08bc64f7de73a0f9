"""A tiny model's tokenizer and template, for real gateways over scripted engines."""

from pathlib import Path

import pytest

from areal_sdk.models.tiny import make_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    make_tiny_model(directory)
    return directory
