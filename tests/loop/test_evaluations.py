"""Evaluations during training: they keep the best weights."""

from pathlib import Path

import orjson

from tests.loop.runs import finish, run_dir, start_command, start_training


def test_evaluations_run_beside_the_rollouts_keep_the_best(tmp_path: Path) -> None:
    process = start_training(tmp_path, run__steps=5, eval__every=2, eval__tasks=4, eval__after=True)
    finish(process)
    run = run_dir(tmp_path)
    rows = run.read_metrics(kind="eval")
    assert [rows[0]["name"], rows[-1]["name"]] == ["step-2", "after"]
    first_best = max(rows, key=lambda row: row["success"])
    best = orjson.loads((run.checkpoints / "best" / "evaluation.json").read_bytes())
    assert best["success"] == first_best["success"]
    assert best["step"] in (first_best["step"], 2, 4), "the step whose weights were exported"
    assert not list(run.checkpoints.glob("candidate-*"))


def test_an_evaluation_that_is_due_while_one_runs_comes_next(tmp_path: Path) -> None:
    process = start_training(
        tmp_path, run__steps=6, eval__every=1, eval__tasks=32, eval__samples=4, rollout__batch=8
    )
    output = finish(process)
    assert "begins when the one that still runs has ended" in output
    rows = run_dir(tmp_path).read_metrics(kind="eval")
    assert len(rows) >= 2, "the one that was due was left out"
    assert any(row["from_version"] < row["to_version"] for row in rows)
    spans = {f"v{row['from_version']}-v{row['to_version']}" for row in rows}
    shown = finish(start_command("inspect", str(tmp_path / "run")))
    assert any(span in output and span in shown for span in spans)
