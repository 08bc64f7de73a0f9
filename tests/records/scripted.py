"""Run directories written by the writers of a real run, from numbers chosen here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.telemetry import DropReason, EpisodeWriter, Ledger, MetricsLog, RunDir
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode, ErrorKind, Outcome, Task, Turn

ATTACK = '<script>alert("x")</script><img src=x onerror=alert(1)> & "quoted"'
"""Text that an agent may say: it must stay text wherever it is shown."""

SETTINGS: dict[str, Any] = {
    "agent": "calculator.py",
    "model": "smollm2",
    "algorithm": {"name": "grpo"},
    "rollout": {"batch": 8, "group_size": 4},
    "run": {"steps": 6},
}


def write_run(
    root: Path,
    name: str,
    *,
    settings: Mapping[str, Any] = SETTINGS,
    steps: int = 6,
    success: tuple[float, float] | None = (0.25, 0.75),
    ended: str | None = "steps",
) -> RunDir:
    """A run of `steps` steps with groups of four; every fourth answer of a group is an attack."""
    run = RunDir.create(root, name)
    run.write_config(settings)
    metrics, episodes, ledger = MetricsLog(run.metrics), EpisodeWriter(run.episodes), Ledger()
    if success:
        metrics.log("eval", _evaluation("before", 0, success[0]))
    for step in range(1, steps + 1):
        _write_step(metrics, episodes, ledger, step)
        if success and step == steps // 2:
            metrics.log("eval", _evaluation(f"step-{step}", step, sum(success) / 2))
    failed = Outcome.failed(ErrorKind.AGENT, "agent: KeyError (agent.py:5)")
    ledger.start(1)
    ledger.drop(DropReason.ERROR_AGENT, 1)
    episodes.write(Episode("bad", Task("t-9"), (), failed), dropped=DropReason.ERROR_AGENT)
    if success:
        metrics.log("eval", _evaluation("after", steps, success[1]))
    run.write_ledger(ledger.snapshot())
    if ended is not None:
        metrics.log(
            "end", {"ended": ended, "steps": steps, "version": steps, "train_seconds": 60.0}
        )
    metrics.close()
    episodes.close()
    return run


def _write_step(metrics: MetricsLog, episodes: EpisodeWriter, ledger: Ledger, step: int) -> None:
    credit: dict[str, Credit] = {}
    rewards = [0.0, 0.25, 0.5, min(1.0, step / 5)]
    mean = sum(rewards) / 4
    for sibling, reward in enumerate(rewards):
        name = f"train-{step}.{sibling}"
        episodes.write(_episode(name, step, sibling, reward), version=step - 1)
        credit[name] = Credit(reward - mean, (reward - mean,))
    episodes.mark_trained(credit, step=step)
    ledger.start(4)
    ledger.buffer(4)
    ledger.train(4)
    metrics.log(
        "step",
        {
            "step": step,
            "version": step,
            "train_seconds": 10.0 * step,
            "sampled_per_s": 400.0,
            "batch/reward": mean,
            "batch/success": 0.25,
            "batch/staleness": 0.5,
            "batch/staleness_max": step % 3,
            "train/entropy": 1.0 / step,
            "train/loss": float("nan") if step == 2 else -0.01 * step,
            "train/grad_norm": 0.5,
            "train/dlogp_lag_0": 0.001 * step,
            "train/step_s": 1.5,
        },
    )


def _episode(name: str, step: int, sibling: int, reward: float) -> Episode:
    answer = ATTACK if sibling == 3 else f"The answer of attempt {sibling} is {10 * step}."
    turn = Turn(
        tuple(range(5)),
        tuple(range(6 + sibling)),
        (-0.5,) * (6 + sibling),
        (step - 1,) * (6 + sibling),
        {"role": "assistant", "content": answer},
        ({"role": "user", "content": f"What is {step} times ten?"},),
    )
    return Episode(
        name,
        Task(f"t-{step}"),
        (turn,),
        Outcome.scored(reward, success=reward == 1.0),
        group=f"train-{step}",
        sibling=sibling,
        duration_s=0.5,
    )


def _evaluation(name: str, step: int, success: float) -> dict[str, Any]:
    return {
        "name": name,
        "split": "eval",
        "step": step,
        "tasks": 20.0,
        "success": success,
        "success_low": max(0.0, success - 0.1),
        "success_high": min(1.0, success + 0.1),
        "reward": success,
        "solved": success,
        "from_version": step,
        "to_version": step,
    }
