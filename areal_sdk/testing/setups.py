"""Setups for tests of launchers and trainers: what a run would hand to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from areal_sdk.config import parse_config
from areal_sdk.launcher import LauncherSetup
from areal_sdk.trainer import Learning, PresetSpec, TrainerSetup


def _silent(_line: str) -> None:
    """Show the user nothing."""


def launcher_setup(
    log_dir: Path,
    *,
    run: str = "test",
    num_ranks: int = 1,
    say: Callable[[str], None] = _silent,
    **cluster: Any,
) -> LauncherSetup:
    """The setup of a launcher. `cluster` are settings of `[cluster]`, as a user would write them.

    >>> launcher_setup(Path("logs"), listen_host="10.0.0.1").cluster.listen_host
    '10.0.0.1'
    """
    section = parse_config({"cluster": cluster}).cluster
    return LauncherSetup(section, run, num_ranks, log_dir, say)


def trainer_setup(
    model_dir: Path,
    log_dir: Path,
    *,
    run: Mapping[str, Any] | None = None,
    preset: PresetSpec | None = None,
    learning: Learning = Learning.EPISODES,
    say: Callable[[str], None] = _silent,
    **trainer: Any,
) -> TrainerSetup:
    """The setup of a trainer. `trainer` are settings of `[trainer]`, `run` those of `[run]`.

    >>> trainer_setup(Path("model"), Path("logs"), learning_rate=1e-4).trainer.first_learning_rate
    0.0001
    """
    config = parse_config({"trainer": trainer, "run": dict(run or {})})
    return TrainerSetup(
        model_dir,
        config.trainer,
        config.run,
        preset=preset or PresetSpec(),
        publish_dtype="float32",
        log_dir=log_dir,
        say=say,
        learning=learning,
    )
