"""Evaluations during training: they keep the best weights."""

from pathlib import Path

import orjson

from tests.loop.runs import finish, run_dir, start_training


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
