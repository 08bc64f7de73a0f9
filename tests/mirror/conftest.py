"""A run directory for tests of mirrors."""

from pathlib import Path

import pytest

from areal_sdk.telemetry import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory with its id and settings."""
    found = RunDir.create(tmp_path / "runs", "run")
    found.write_config({"model": "tiny", "gateway": {"admin_key": "sk-secret-1"}})
    (found.path / "id.json").write_text('{"id": "one"}')
    return found
