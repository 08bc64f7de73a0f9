"""trackio: metrics over the step, and tables for evaluations and samples."""

from typing import Any

import pandas as pd
import trackio

COLUMNS = ("name", "split", "step", "success", "reward", "tasks")


def begin(
    *, name: str, run_dir: str, settings: dict[str, Any], options: dict[str, Any]
) -> "Trackio":
    run = trackio.init(
        project=options["project"],
        name=name,
        space_id=options["space_id"],
        config=settings,
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return Trackio(run)


class Trackio:
    def __init__(self, run: Any) -> None:
        self._run = run
        self._evaluations: list[dict[str, Any]] = []

    def metrics(self, *, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def evaluation(self, *, name: str, split: str, step: int, values: dict[str, float]) -> None:
        known = {"name": name, "split": split, "step": step, **values}
        self._evaluations.append({column: known.get(column) for column in COLUMNS})
        numbers = {f"{split}/{key}": value for key, value in values.items()}
        table = trackio.Table(dataframe=pd.DataFrame(self._evaluations))
        self._run.log({**numbers, "evaluations": table}, step=step)

    def samples(self, *, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        self._run.log({f"samples/{split}": trackio.Table(dataframe=pd.DataFrame(rows))}, step=step)

    def end(self, *, values: dict[str, float] | None) -> None:
        if values is not None:
            self._run.log({f"run/{key}": value for key, value in values.items()})
        trackio.finish()
