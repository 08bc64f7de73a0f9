import pytest

from areal_sdk.telemetry import RunDir

from .scripted import write_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A finished run, to be read only."""
    return write_run(tmp_path_factory.mktemp("runs"), "calculator-1")
