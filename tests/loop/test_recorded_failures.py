"""A run that an error ends says so in its directory: it was not interrupted."""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import Config, parse_config
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.loop.runs import Start, Training, begun
from areal_sdk.plugins import Plugins, load_plugins
from areal_sdk.records.overview import RunFate, overview_of


@dataclass(frozen=True)
class NoPlan:
    """A plan that is never run: the test is the run."""

    config: Config
    plugins: Plugins = field(default_factory=load_plugins)
    name: str = "agent"
    splits: Sequence[str] = ()

    def run(self, start: Start) -> Coroutine[Any, Any, RunSummary]:
        raise NotImplementedError


@pytest.fixture
def training(tmp_path: Path) -> Training:
    config = parse_config({"model": "tiny", "run": {"dir": str(tmp_path), "name": "run"}})
    return Training(NoPlan(config), NoPlan, quiet=True)


@pytest.mark.parametrize("error", [EngineError("out of memory"), RuntimeError("out of memory")])
def test_the_error_of_a_run_is_kept(training: Training, tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)), begun(training):
        raise ExceptionGroup("tasks", [error])
    overview = overview_of(tmp_path / "run")
    assert overview is not None
    assert overview.state is RunFate.FAILED
    assert overview.problem == f"{type(error).__name__}: out of memory"


def test_ctrl_c_interrupts_and_what_was_refused_leaves_nothing(
    training: Training, tmp_path: Path
) -> None:
    with begun(training):
        raise KeyboardInterrupt
    overview = overview_of(tmp_path / "run")
    assert overview is not None
    assert overview.state is RunFate.INTERRUPTED
    (tmp_path / "run").rename(tmp_path / "earlier")
    with pytest.raises(ConfigError), begun(training):
        raise ConfigError("no such reward")
    assert not (tmp_path / "run").exists()
