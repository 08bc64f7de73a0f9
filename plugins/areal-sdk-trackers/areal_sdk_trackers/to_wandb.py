"""Weights & Biases: metrics over the step, and tables for evaluations and samples."""

import re
from typing import Any

import wandb

COLUMNS = ("name", "split", "step", "success", "reward", "tasks")


def begin(*, name: str, run_dir: str, settings: dict[str, Any], options: dict[str, Any]) -> "Wandb":
    run = wandb.init(
        project=options["project"],
        entity=options["entity"],
        group=options["group"],
        tags=options["tags"] or None,
        mode=options["mode"],
        name=name,
        id=re.sub(r"[^A-Za-z0-9_-]", "-", name),
        resume="allow",  # a resumed run goes on where it was
        dir=run_dir,
        config=settings,
        settings=wandb.Settings(console="off"),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")  # evaluations may be of an earlier step
    return Wandb(run)


class Wandb:
    def __init__(self, run: Any) -> None:
        self._run = run
        self._evaluations: list[list[Any]] = []

    def metrics(self, *, step: int, values: dict[str, float]) -> None:
        self._run.log({**values, "step": step})

    def evaluation(self, *, name: str, split: str, step: int, values: dict[str, float]) -> None:
        known = {"name": name, "split": split, "step": step, **values}
        self._evaluations.append([known.get(column) for column in COLUMNS])
        table = wandb.Table(columns=list(COLUMNS), data=self._evaluations)
        numbers = {f"{split}/{key}": value for key, value in values.items()}
        self._run.log({**numbers, "evaluations": table, "step": step})

    def samples(self, *, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        columns = list(rows[0])
        table = wandb.Table(columns=columns, data=[list(row.values()) for row in rows])
        self._run.log({f"samples/{split}": table, "step": step})

    def end(self, *, values: dict[str, float] | None) -> None:
        if values is not None:
            self._run.summary.update({f"run/{key}": value for key, value in values.items()})
        self._run.finish(exit_code=1 if values is None else 0)
