"""MLflow: metrics and parameters; JSON files for settings, evaluations and samples."""

import time
from collections.abc import Iterator
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

RUN_TAG = "areal_sdk.run"
MAX_PARAM = 500
"""Maximum number of characters of a parameter; settings.json has all of them."""
BATCH = 100
"""Number of parameters that MLflow takes at once."""


def begin(
    *, name: str, run_dir: str, settings: dict[str, Any], options: dict[str, Any]
) -> "Mlflow":
    client = MlflowClient(tracking_uri=options["uri"])
    found = client.get_experiment_by_name(options["experiment"])
    experiment = found.experiment_id if found else client.create_experiment(options["experiment"])
    before = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{name}'", max_results=1)
    if before:  # a resumed run goes on where it was; its parameters cannot be changed
        run_id = before[0].info.run_id
        client.update_run(run_id, status="RUNNING")
    else:
        run_id = client.create_run(experiment, run_name=name, tags={RUN_TAG: name}).info.run_id
        params = [Param(key, str(value)[:MAX_PARAM]) for key, value in _leaves(settings)]
        for first in range(0, len(params), BATCH):
            client.log_batch(run_id, params=params[first : first + BATCH])
    client.log_dict(run_id, settings, "settings.json")
    return Mlflow(client, run_id)


class Mlflow:
    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._evaluations: list[dict[str, Any]] = []

    def metrics(self, *, step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run_id, metrics=[Metric(key, value, now, step) for key, value in values.items()]
        )

    def evaluation(self, *, name: str, split: str, step: int, values: dict[str, float]) -> None:
        self.metrics(step=step, values={f"{split}/{key}": v for key, v in values.items()})
        self._evaluations.append({"name": name, "split": split, "step": step, **values})
        self._client.log_dict(self._run_id, {"evaluations": self._evaluations}, "evaluations.json")

    def samples(self, *, split: str, step: int, rows: list[dict[str, Any]]) -> None:
        self._client.log_dict(self._run_id, {"rows": rows}, f"samples/{split}-{step}.json")

    def end(self, *, values: dict[str, float] | None) -> None:
        if values is not None:
            self._client.log_dict(self._run_id, values, "summary.json")
        self._client.set_terminated(self._run_id, "FAILED" if values is None else "FINISHED")


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
