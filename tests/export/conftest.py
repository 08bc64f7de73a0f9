"""A run that has trained two steps and measured both ends, without its processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_sdk.fsdp.checkpoint import export_model, save_checkpoint
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.loop.evaluation.best import Measured
from areal_sdk.loop.plan.models import find_origin, keep_description
from areal_sdk.models import make_tiny_model
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.files import to_json, write_atomically
from areal_sdk.telemetry.metrics import MetricsLog
from areal_sdk.telemetry.run_dir import MEASURED_FILE
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Checkpoints of steps 1 and 2, in bfloat16 the best weights of step 1 and the final ones."""
    directory = tmp_path_factory.mktemp("runs")
    return make_run(directory, make_tiny_model(directory / "tiny-model"))


ON_ANOTHER_MACHINE: Mapping[str, Any] = {
    "agent": "/home/someone/agents/vowels.py",
    "tasks": "/home/someone/tasks.jsonl",
    "rewards": {"exact": 1.0},
}


def make_run(
    root: Path,
    model_dir: Path,
    *,
    lora_rank: int = 0,
    sampled: str = "bfloat16",
    learning_rate: float = 1e-2,
    plays: Mapping[str, Any] = ON_ANOTHER_MACHINE,
) -> RunDir:
    run = RunDir.create(root, "my-run")
    run.write_config(
        {
            **plays,
            "model": str(model_dir),
            "engine": {"dtype": sampled},
            "trainer": {"learning_rate": 0.001, "lora": {"rank": lora_rank}},
            "algorithm": {"name": "grpo"},
        }
    )
    find_origin(model_dir, run, must_be_same=False)
    keep_description(model_dir, run)
    lora = {"lora": {"rank": lora_rank}} if lora_rank else {}
    trainer = RankTrainer(
        trainer_spec(model_dir, learning_rate=learning_rate, warmup_steps=0, **lora)
    )
    log = MetricsLog(run.metrics)
    _measure(log, "before", step=0, success=0.25)
    for step in (1, 2):
        metrics = trainer.step(make_groups(seed=step), version=0)
        numbers = {f"train/{name}": value for name, value in metrics.items()}
        log.log("step", {"step": step, "ledger": {"trained": 16 * step}, **numbers})
        save_checkpoint(trainer, run.checkpoints / f"step-{step:06d}", {"step": step})
        exported = run.checkpoints / ("best", "final")[step - 1]
        export_model(trainer, exported, dtype=getattr(torch, sampled))
        _measure(log, f"step-{step}", step=step, success=0.8 - 0.1 * step)
    log.close()
    best = Measured(1, 0.7, 0.7, 1, 1, measure={"tasks": 8})
    write_atomically(run.checkpoints / "best" / MEASURED_FILE, to_json(best.to_json()))
    return run


def _measure(log: MetricsLog, name: str, *, step: int, success: float) -> None:
    scores = {"success": success, "success_low": success - 0.1, "success_high": success + 0.1}
    versions = {"from_version": step, "to_version": step}
    log.log(
        "eval", {"name": name, "split": "eval", "step": step, "tasks": 8.0, **scores, **versions}
    )
