"""kill -9 at random points, while checkpoints are written beside the steps: what goes on is the same."""

import multiprocessing
import random
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from areal_sdk.config import RunSection
from areal_sdk.fsdp.checkpoint import Saver, load_checkpoint
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.loop.learning.state import PREFIX, latest_checkpoint
from areal_sdk.telemetry.directories import partial_of, recover
from tests.fsdp.checkpoint.killing import DEADLINE_S, place
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec

NUM_KILLS = 20
NUM_STEPS = 40

PROCESSES = multiprocessing.get_context("forkserver")


def train(model_dir: Path, directory: Path, told: Connection) -> None:
    """Go on from the newest checkpoint, tell the loss of each step, and begin a checkpoint of it."""
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    spec = trainer_spec(model_dir, learning_rate=1e-3)
    trainer = RankTrainer(replace(spec, run=RunSection(deterministic=True)))
    saver, step = Saver(trainer), 0
    recover(directory)
    if (latest := latest_checkpoint(directory)) is not None:
        step = load_checkpoint(trainer, latest)["step"]
    assert step < NUM_STEPS, "each process has something to do"
    while step < NUM_STEPS:
        step += 1
        metrics = trainer.step(make_groups(seed=step), version=0)
        saver.begin(place(directory, step), {"step": step})
        told.send((step, metrics["loss"], metrics["grad_norm"]))
    written = threading.Event()
    saver.when_written(lambda _: written.set())
    written.wait(DEADLINE_S)
    told.send(None)


@pytest.mark.slow
def test_20_kills_at_random_points_change_no_bit_of_any_loss(
    model_dir: Path, tmp_path: Path
) -> None:
    PROCESSES.set_forkserver_preload([__name__])
    generator = random.Random(12)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    expected = dict.fromkeys(range(1, NUM_STEPS + 1))
    expected.update(run_until(model_dir, whole, None, generator))
    assert len(set(expected.values())) == NUM_STEPS
    found, resumed_from = [], []
    for _ in range(NUM_KILLS):
        found += run_until(model_dir, killed, generator.randint(1, 3), generator)
        latest = latest_checkpoint(killed)
        resumed_from.append(0 if latest is None else int(latest.name.removeprefix(PREFIX)))
    found += run_until(model_dir, killed, None, generator)
    assert all(values == expected[step] for step, values in found)
    assert found[-1][0] == NUM_STEPS
    assert resumed_from == sorted(resumed_from), "a checkpoint that was whole stays"
    assert len(set(resumed_from)) > 3


def run_until(
    model_dir: Path, directory: Path, num_steps: int | None, generator: random.Random
) -> list[tuple[int, tuple[float, ...]]]:
    """The losses of a process by step: to its end, or killed in a random phase of a write."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=train, args=(model_dir, directory, theirs))
    process.start()
    theirs.close()
    values: list[tuple[int, tuple[float, ...]]] = []
    try:
        while num_steps is None or len(values) < num_steps:
            assert ours.poll(DEADLINE_S), "the process tells nothing"
            if (line := ours.recv()) is None:
                break
            values.append((line[0], tuple(line[1:])))
        if num_steps is not None and values:
            being_written = place(directory, values[-1][0])
            phase = generator.choice(["at once", "in the middle", "at the end"])
            while phase != "at once" and not being_written.exists():
                assert process.is_alive()
                if phase == "in the middle" and partial_of(being_written).exists():
                    break
            process.kill()
        process.join(DEADLINE_S)
        assert process.exitcode is not None
    finally:
        process.kill()
        ours.close()
    return values
