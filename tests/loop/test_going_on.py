"""A resumed run says where it goes on, what was changed, and that there is nothing left to do."""

from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import load_config, parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.evaluation.earlier import recorded_before
from areal_sdk.loop.learning.state import changed_settings, why_finished
from areal_sdk.telemetry import MetricsLog, RunDir
from tests.loop.runs import AGENT, finish, inspect, resume_training, run_dir, start_training


def begun(directory: Path, **settings: Any) -> RunDir:
    run = RunDir.create(directory, "run")
    config = parse_config({"agent": str(AGENT), "model": "tiny", **settings})
    run.write_config(config.model_dump(mode="json", exclude_none=True))
    return run


def changes(run: RunDir, *settings: str, is_saved: bool = True) -> list[str]:
    config = load_config(file=run.config, settings=settings)
    return [str(change) for change in changed_settings(run, config, is_saved=is_saved)]


def test_every_setting_with_another_value_is_named_with_both(tmp_path: Path) -> None:
    run = begun(tmp_path, run={"steps": 4}, reward={"exact_match": {"weight": 1.0}})
    assert changes(run) == []
    assert changes(run, "run.steps=4", "rollout.batch=32", "reward.exact_match.weight=0.5") == [
        "reward.exact_match.weight = 0.5 (was 1.0)"
    ]
    assert changes(run, "run.steps=9", "run.max_minutes=5") == [
        "run.max_minutes = 5.0 (was not set)",
        "run.steps = 9 (was 4)",
    ]


def test_a_secret_that_is_given_again_is_not_printed(tmp_path: Path) -> None:
    run = begun(tmp_path, gateway={"admin_key": "geheim"})
    assert changes(run, "gateway.admin_key=geheimer") == []


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("model=smollm2", r"model = 'smollm2': a run keeps its model \('tiny'\)"),
        ("init_from=runs/x", "a run keeps the weights it began with"),
        ("run.seed=3", r"run.seed = 3: the order of its tasks .* \(0\): leave it out"),
        ("run.name=other", "a run goes on in its own directory"),
        ("serve.learn=true", "with callers, or with tasks"),
        ("sft.steps=5", "its warm-up has begun"),
    ],
)
def test_what_cannot_change_is_refused(tmp_path: Path, setting: str, why: str) -> None:
    run = begun(tmp_path)
    with pytest.raises(ConfigError, match=why):
        changes(run, setting)


def test_a_run_that_saved_nothing_may_still_be_warmed_up(tmp_path: Path) -> None:
    assert changes(begun(tmp_path), "sft.steps=5", is_saved=False) == ["sft.steps = 5 (was 0)"]


def finished(directory: Path, **end: Any) -> RunDir:
    run = begun(directory, run={"steps": 4, "max_minutes": 5})
    log = MetricsLog(run.metrics)
    log.log("end", {"steps": 4, "version": 4, "train_seconds": 9.0, "ended": "steps", **end})
    log.close()
    return run


def why(run: RunDir, *settings: str) -> str | None:
    config = load_config(file=run.config, settings=settings)
    return why_finished(run, config, changed_settings(run, config, is_saved=True))


def test_a_finished_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = finished(tmp_path)
    assert why(run) == (
        "it has made its 4 steps (run.steps); for more of them: "
        f"areal-sdk train --resume {run.path} --steps 8"
    )
    assert why(run, "run.steps=5") is None
    run.record_call({"agent": "Vowels", "tasks": "..."})
    assert f"areal_sdk.train(Vowels, resume='{run.path}', tasks=..., run={{'steps': 8}})" in str(
        why(run)
    )


def test_a_run_whose_minutes_are_over_is_finished_until_it_gets_more(tmp_path: Path) -> None:
    run = finished(tmp_path, steps=3, ended="max_minutes")
    assert "it has trained for its 5 minutes, 3 steps" in str(why(run))
    assert why(run, "run.max_minutes=9") is None


@pytest.mark.parametrize("ended", ["solved", "hopeless", "stuck"])
def test_a_run_without_gradients_is_finished_until_a_setting_changes(
    tmp_path: Path, ended: str
) -> None:
    run = finished(tmp_path, steps=3, ended=ended)
    assert f"no gradient after 3 steps ({ended})" in str(why(run))
    assert why(run, "trainer.learning_rate=1e-6") is None
    assert why(run, "run.steps=9") is None


def test_a_run_that_was_stopped_in_its_last_evaluation_is_not_finished(tmp_path: Path) -> None:
    run = finished(tmp_path)
    log = MetricsLog(run.metrics)
    log.log("resume", {"step": 4, "changed": {}})
    log.close()
    assert why(run) is None


@pytest.fixture(scope="module")
def twice(
    tmp_path_factory: pytest.TempPathFactory, parts: tuple[str, ...]
) -> tuple[Path, str, str]:
    """A run, resumed when it was finished, and then for one more step."""
    directory = tmp_path_factory.mktemp("run")
    measured: dict[str, Any] = {"eval__before": True, "eval__after": True, "eval__tasks": 2}
    finish(start_training(directory, *parts, run__steps=1, **measured))
    again = finish(resume_training(directory))
    return directory, again, finish(resume_training(directory, "--steps", "2"))


def test_resuming_a_finished_run_does_nothing_and_says_so(twice: tuple[Path, str, str]) -> None:
    directory, again, _ = twice
    path = directory / "run"
    assert f"{path} is finished: it has made its 1 step (run.steps)" in again
    assert f"areal-sdk train --resume {path} --steps 2" in again
    assert "starting" not in again
    assert "nothing was measured" not in again


def test_the_metrics_mark_where_a_run_went_on_and_what_was_changed(
    twice: tuple[Path, str, str],
) -> None:
    directory, _, more = twice
    run = run_dir(directory)
    kinds = [row["kind"] for row in run.read_metrics()]
    assert kinds == ["eval", "step", "eval", "end", "resume", "step", "eval", "end"]
    (mark,) = run.read_metrics(kind="resume")
    assert (mark["step"], mark["changed"]) == (1, {"run.steps": [1, 2]})
    assert "resumed after step 1" in more
    assert "changed: run.steps = 2 (was 1)" in more
    shown = inspect(str(run.path))
    assert "resumed    after step 1  run.steps = 2 (was 1)" in shown


def test_a_resumed_run_shows_what_was_measured_before_its_first_step(
    twice: tuple[Path, str, str],
) -> None:
    directory, _, more = twice
    (row,) = (line.split("  ") for line in more.splitlines() if line.startswith("eval "))
    assert "-" not in [cell.strip() for cell in row]
    before = run_dir(directory).read_metrics(kind="eval")[0]
    assert f"{before['reward']:.2f} [" in more


def test_what_was_measured_otherwise_is_not_compared(tmp_path: Path) -> None:
    run = begun(tmp_path)
    log = MetricsLog(run.metrics)
    log.log("eval", {"name": "before", "split": "eval", "step": 0, "tasks": 2.0, "scored": 2.0})
    log.log("resume", {"step": 1, "changed": {"eval.every": [0, 2]}})
    assert set(recorded_before(run, ["eval", "hard"])) == {"eval"}
    assert recorded_before(run, ["hard"]) == {}
    log.log("resume", {"step": 2, "changed": {"eval.temperature": ["not set", 1.0]}})
    log.close()
    assert recorded_before(run, ["eval"]) == {}
