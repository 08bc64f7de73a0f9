"""A flag that `serve` cannot honour is refused at once, instead of being ignored."""

from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop import resume_training
from areal_sdk.telemetry import RunDir
from tests.loop.runs import refused


def test_an_end_for_learning_is_refused_where_nothing_learns() -> None:
    assert "add --learn" in refused("serve", "--model", "tiny", "--steps", "3")


def test_a_run_that_only_kept_sessions_cannot_go_on(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, stem="serve")
    run.write_config({"model": "tiny", "serve": {"record": True}})
    with pytest.raises(ConfigError, match="only kept sessions"):
        resume_training(run.path)


def test_a_run_of_serve_goes_on_by_serve(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, stem="serve")
    run.write_config({"model": "tiny", "serve": {"learn": True}})
    assert run.how_to_resume() == f"areal-sdk serve --resume {run.path}"


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_key_in_the_arguments_is_warned_of(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-admin-0123456789abcdef"
    monkeypatch.setenv("AREAL_SDK_ADMIN_KEY", key if way == "variable" else "")
    given = ("--admin-key", key) if way == "argument" else ()
    said = refused("serve", "--model", "tiny", "--steps", "3", *given)
    assert ("set AREAL_SDK_ADMIN_KEY instead" in said) == (way == "argument")
    assert key not in said
