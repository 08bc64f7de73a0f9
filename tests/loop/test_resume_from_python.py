"""A run that began from Python with objects goes on from Python, and says so."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

import areal_sdk
from areal_sdk.config import Config, RunSection
from areal_sdk.errors import ConfigError
from areal_sdk.loop import api
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.mirrored import Mirroring
from areal_sdk.loop.plan.given import read_call
from areal_sdk.loop.plan.models import find_model
from areal_sdk.loop.runs import BegunRun, Training
from areal_sdk.telemetry import RunDir
from tests.loop.runs import AGENT, PLUGIN, inspect, refused
from tests.loop.vowels import Vowels, tasks

SMALL: dict[str, Any] = {
    "rollout": {"batch": 8, "group_size": 4, "max_inflight": 8},
    "plugins": [PLUGIN],
    "engine": {"name": "scripted"},
    "trainer": {"name": "scripted"},
    "eval": {"before": False, "after": False},
}
TASKS = list(tasks("train"))


def begun(directory: Path, call: dict[str, str]) -> RunDir:
    run = RunDir.create(directory, "run")
    run.write_config(Config(model="tiny").model_dump(mode="json", exclude_none=True))
    run.record_call(call)
    return run


def test_train_resumes_a_run_that_it_began_with_a_class_and_tasks(tmp_path: Path) -> None:
    run = {"dir": tmp_path, "name": "run", "steps": 1}
    areal_sdk.train(Vowels, model="tiny", tasks=TASKS, run=run, quiet=True, **SMALL)
    path = tmp_path / "run"
    assert RunDir(path).how_to_resume() == f"areal_sdk.train(Vowels, resume='{path}', tasks=...)"
    summary = areal_sdk.train(Vowels, resume=path, tasks=TASKS, run={"steps": 2}, quiet=True)
    assert summary.steps == 2
    assert [row["step"] for row in RunDir(path).read_steps()] == [1, 2]


def test_what_only_python_can_give_again_is_asked_for_with_the_call(tmp_path: Path) -> None:
    run = begun(tmp_path, {"agent": "Vowels", "tasks": "..."})
    call = f"areal_sdk.train(Vowels, resume='{run.path}', tasks=...)"
    with pytest.raises(ConfigError, match=re.escape(call)):
        api.resume_training(run.path, quiet=True)
    with pytest.raises(ConfigError, match=re.escape(call)):
        areal_sdk.train(Vowels, resume=run.path, quiet=True)
    assert f"go on with {call}" in refused("train", "--resume", str(run.path))


def test_every_note_names_the_way_on_that_works(tmp_path: Path) -> None:
    run = begun(tmp_path, {"agent": "Vowels"})
    with pytest.raises(ConfigError, match=r"areal_sdk\.train\(Vowels, resume="):
        find_model(str(run.path))
    with pytest.raises(ConfigError, match=r"areal_sdk\.train\(Vowels, resume="):
        RunDir.create(tmp_path, "run")
    run.write_live({"name": "Vowels", "step": 1, "total_steps": 9, "elapsed_s": 1.0})
    shown = inspect(str(run.path), "--live")
    assert "go on with: areal_sdk.train(Vowels, resume=" in shown


def test_a_run_of_a_file_is_resumed_by_the_command(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "my run")
    assert run.how_to_resume() == f"areal-sdk train --resume '{run.path}'"


def test_a_resumed_run_keeps_its_model(tmp_path: Path) -> None:
    run = begun(tmp_path, {"agent": "Vowels"})
    with pytest.raises(ConfigError, match="leave model out"):
        areal_sdk.train(str(AGENT), resume=run.path, model="smollm2")


@pytest.mark.parametrize("is_read_once", [True, False])
def test_a_run_whose_tasks_are_read_once_does_not_go_on_by_itself(
    is_read_once: bool, tmp_path: Path
) -> None:
    rows = [{"number": number} for number in range(8)]
    given = read_call(Vowels, {}, {"train": iter(rows) if is_read_once else rows}).tasks["train"]
    first, again = (list(islice(iter(given), 4)) for _ in range(2))
    assert [task.id for task in first] == [task.id for task in again]
    assert (first == again) is not is_read_once  # other tasks under the same ids
    training = api.plan_training(
        Vowels,
        {"run": {"restarts": 1}, **SMALL},
        model="tiny",
        tasks={"train": iter(TASKS) if is_read_once else TASKS},
        resume=None,
        quiet=True,
    )
    assert isinstance(training, Training)
    run = RunDir.create(tmp_path, "run")
    run.metrics.write_text(json.dumps({"kind": "step", "step": 1, "time": 1.0}) + "\n")
    begun_run = BegunRun(training, run, RunState(), cast(Any, None), Mirroring(run, RunSection()))
    assert begun_run.can_go_on() is not is_read_once
