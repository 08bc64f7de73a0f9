"""What `serve` cannot do is refused at once, instead of being ignored."""

import subprocess
import sys
from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop import resume_training
from areal_sdk.telemetry import RunDir


def test_an_end_for_learning_is_refused_where_nothing_learns() -> None:
    command = [sys.executable, "-m", "areal_sdk", "serve", "--model", "tiny", "--steps", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "add --learn" in ended.stderr


def test_a_run_that_only_kept_sessions_cannot_go_on(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, stem="serve")
    run.write_config({"model": "tiny", "serve": {"record": True}})
    with pytest.raises(ConfigError, match="only kept sessions"):
        resume_training(run.path)


def test_a_run_of_serve_goes_on_by_serve(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, stem="serve")
    run.write_config({"model": "tiny", "serve": {"learn": True}})
    assert run.how_to_resume() == f"areal-sdk serve --resume {run.path}"
