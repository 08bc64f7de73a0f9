"""Whole runs of two policies: alone and together, killed and resumed, measured."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import areal_sdk
from areal_sdk import Run

AGENT = Path(__file__).with_name("pair_agent.py")
STEPS = 3
PATIENCE_S = 300.0

pytestmark = pytest.mark.long


def settings(directory: Path, **policies: Mapping[str, object]) -> dict[str, Any]:
    return {
        "policy": {"planner": {}, "coder": {"learning_rate": 0.002}} | policies,
        "run": {
            "dir": str(directory),
            "steps": STEPS,
            "deterministic": True,
            "checkpoint_every": 1,
            "keep_checkpoints": 9,
        },
        "rollout": {"batch": 8, "group_size": 4},
        "trainer": {"learning_rate": 0.003, "device": "cpu", "lora": {"rank": 4}},
        "engine": {"device": "cpu", "dtype": "float32"},
        "eval": {"before": True, "after": True},
    }


def play(directory: Path, **policies: Mapping[str, object]) -> Run:
    made = settings(directory, **policies)
    summary = areal_sdk.train(str(AGENT), model="tiny", quiet=True, **made)
    return Run(summary.run_dir)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(tmp_path_factory.mktemp("together"))


def steps(run: Run, key: str) -> list[float]:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def final(run: Run, policy: str) -> Mapping[str, Any]:
    directory = run.path / "checkpoints" / "final" / policy
    return {k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()}


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_each_policy_learns_as_in_the_run_where_it_learns_alone(
    together: Run, tmp_path: Path
) -> None:
    for alone, other in (("planner", "coder"), ("coder", "planner")):
        run = play(tmp_path / alone, **{other: {"frozen": "tiny"}})
        for key in ("loss", "num_trained", "grad_norm"):
            learnt = steps(run, f"train/{alone}/{key}")
            assert len(learnt) == STEPS
            assert learnt == steps(together, f"train/{alone}/{key}")
        assert not steps(run, f"train/{other}/loss")
        assert equal(final(run, alone), final(together, alone))
        assert not (run.path / "checkpoints" / "final" / other).exists()
    assert not equal(final(together, "planner"), final(together, "coder"))


def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(
    together: Run, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings(tmp_path / "runs")))
    code = (
        "import json, areal_sdk, sys; made = json.load(open(sys.argv[2])); "
        "areal_sdk.train(sys.argv[1], model='tiny', quiet=True, **made)"
    )
    command = [sys.executable, "-c", code, str(AGENT), str(file)]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while not (found := [*tmp_path.glob("runs/*/checkpoints/step-000001")]):
            assert time.monotonic() < deadline, (tmp_path / "out").read_text()
            assert process.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    directory = found[0].parents[1]
    assert not (directory / "checkpoints" / "final").exists()
    areal_sdk.train(resume=directory, quiet=True)
    for policy in ("planner", "coder"):
        assert equal(final(Run(directory), policy), final(together, policy))


def test_evaluations_tell_the_reward_of_each_policy(together: Run) -> None:
    lines = [*map(json.loads, (together.path / "metrics.jsonl").read_text().splitlines())]
    measured = [line for line in lines if line["kind"] == "eval"]
    assert [line["name"] for line in measured] == ["before", "after"]
    for line in measured:
        rewards = [line[f"outcome/policy/{policy}"] for policy in ("planner", "coder")]
        assert sum(rewards) == pytest.approx(line["reward"])
