"""kill -9 at random points of `areal-sdk sft`, gone on with by another number of ranks each time."""

import json
import os
import random
import signal
import string
import subprocess
import time
from pathlib import Path

import pytest

from areal_sdk.loop.learning.state import latest_checkpoint
from areal_sdk.telemetry.directories import partial_of
from areal_sdk.telemetry.metrics import read_metrics
from tests.fsdp.checkpoint.killing import DEADLINE_S, place
from tests.loop.runs import children_of, finish, start_command

NUM_KILLS = 20
NUM_STEPS = 100
BOUND = 1e-5
POLL_S = 0.005
SETTINGS = {
    "run.deterministic": "true",
    "run.checkpoint_every": "1",
    "trainer.precision": "float32",
    "trainer.device": "cpu",
    "trainer.warmup_steps": "3",
}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    generator, path = random.Random(0), tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(60):
            text = "".join(generator.choices(string.ascii_lowercase, k=generator.randint(5, 60)))
            said = zip(("user", "assistant"), (text, text[::-1]), strict=True)
            file.write(
                json.dumps({"messages": [{"role": r, "content": c} for r, c in said]}) + "\n"
            )
    return path


def begin(rows: Path, name: str, ranks: int) -> "subprocess.Popen[str]":
    settings = {**SETTINGS, "run.dir": str(rows.parent), "run.name": name}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    limits = ("--steps", str(NUM_STEPS), "--batch", "6", "--learning-rate", "1e-4")
    data = ("sft", str(rows), "--model", "tiny")
    return start_command(*data, *limits, *given, "--set", f"trainer.ranks={ranks}")


def go_on(run: Path, ranks: int) -> "subprocess.Popen[str]":
    return start_command("sft", "--resume", str(run), "--set", f"trainer.ranks={ranks}")


def losses(run: Path) -> list[tuple[int, float]]:
    """Steps and losses in the order in which the steps were taken: a step that was taken again
    comes twice."""
    if not (path := run / "metrics.jsonl").exists():
        return []
    return [(event["step"], event["train/loss"]) for event in read_metrics(path, kind="step")]


def saved(run: Path) -> int:
    latest = latest_checkpoint(run / "checkpoints")
    return 0 if latest is None else int(latest.name.rpartition("-")[2])


def kill(
    process: "subprocess.Popen[str]", run: Path, *, ranks: int, generator: random.Random
) -> str:
    """Kill the main process or a rank after some more steps, in a random phase of a checkpoint."""
    num_before, num_steps = len(losses(run)), generator.randint(1, 3)
    deadline = time.monotonic() + DEADLINE_S

    def wait() -> None:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(POLL_S)

    while len(losses(run)) < num_before + num_steps:
        wait()
    being_written = place(run / "checkpoints", losses(run)[-1][0] + 1)
    phase = generator.choice(["at once", "in the middle", "at the end"])
    while phase == "in the middle" and not partial_of(being_written).exists():
        if saved(run) >= int(being_written.name.rpartition("-")[2]):
            break  # too late for the middle
        wait()
    while phase == "at the end" and not being_written.exists():
        wait()
    victim = generator.choice(["main", *(f"trainer-{rank}" for rank in range(ranks))])
    [pid] = [process.pid] if victim == "main" else children_of(process.pid, victim)
    os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    return f"{victim} of {ranks}, {phase}"


@pytest.mark.slow
def test_20_kills_each_resumed_on_another_number_of_ranks_lose_no_step_and_change_no_loss(
    rows: Path,
) -> None:
    """Each loss is that of two runs that were not killed, one on each number of ranks."""
    whole = {}
    for ranks in (1, 2):
        finish(begin(rows, f"whole-{ranks}", ranks), deadline_s=DEADLINE_S)
        whole[ranks] = dict(losses(rows.parent / f"whole-{ranks}"))
        assert len(whole[ranks]) == NUM_STEPS
    generator, run = random.Random(12), rows.parent / "killed"
    ranks, num_taken, kills, resumed_from = 1, 0, list[str](), list[int]()
    process = begin(rows, run.name, ranks)
    try:
        for _ in range(NUM_KILLS):
            kills.append(kill(process, run, ranks=ranks, generator=generator))
            resumed_from.append(saved(run))
            num_taken, ranks = len(losses(run)), 3 - ranks
            process = go_on(run, ranks)
        finish(process, deadline_s=DEADLINE_S)
    finally:
        process.kill()
    taken = losses(run)
    assert [step for step, _ in taken[num_taken:]] == [*range(resumed_from[-1] + 1, NUM_STEPS + 1)]
    assert dict(taken).keys() == whole[1].keys(), "every step was taken"
    assert resumed_from == sorted(resumed_from), "a checkpoint that was whole stays"
    errors = {
        ranks: max(abs(loss / expected[step] - 1.0) for step, loss in taken)
        for ranks, expected in whole.items()
    }
    assert max(errors.values()) < BOUND, errors
    assert len(set(kills)) > 5
    assert len(set(resumed_from)) > 10
