"""A launcher and a trainer of strangers: short packages on the contracts alone, in real runs."""

import asyncio
import os
import re
import signal
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import ChildDiedError, ConfigError, ProcessError
from areal_sdk.launcher import Child, Launcher, ProcessSpec, first_exit
from areal_sdk.models import resolve_model
from areal_sdk.plugins import load_plugins
from areal_sdk.telemetry.metrics import read_metrics
from areal_sdk.testing import launcher_setup, trainer_setup
from areal_sdk.trainer import PresetSpec, Trainer
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import WeightUpdate
from tests.loop.runs import finish, run_dir, start_training
from tests.toolbox.contracts import CONTRACTS
from tests.toolbox.run_records import curve

STRANGERS = Path(__file__).parent / "strangers"
PACKAGES = ("areal-sdk-prefix", "areal-sdk-plain")
MOST_LINES = 200
RANK = "tests.process.entries:rank"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The packages as an installation leaves them, for this process and its children: the PYTHONPATH."""
    site = tmp_path / "site"
    for name in PACKAGES:
        project = tomllib.loads((STRANGERS / name / "pyproject.toml").read_text())["project"]
        points = project["entry-points"]["areal_sdk"]
        info = site / f"{name.replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(head)
        listed = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[areal_sdk]\n{listed}")
    paths = [str(site), *(str(STRANGERS / name) for name in PACKAGES)]
    for path in paths:
        monkeypatch.syspath_prepend(path)
    return os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("name", PACKAGES)
def test_the_package_is_short_and_imports_contracts_alone(name: str) -> None:
    sources = [path.read_text() for path in (STRANGERS / name).rglob("*.py")]
    assert sum(source.count("\n") for source in sources) < MOST_LINES
    found = {
        module
        for source in sources
        for module in re.findall(r"^\s*(?:from|import) areal_sdk(\.[\w.]+)?[ \n]", source, re.M)
    }
    assert found <= {"", *(f".{contract}" for contract in CONTRACTS)}


@pytest.fixture
async def launcher(installed: str, tmp_path: Path) -> AsyncIterator[Launcher]:
    opening = load_plugins().configure("cluster", "prefix", {"words": "nice -n 1"})
    launcher = await opening(launcher_setup(tmp_path / "logs", launcher="prefix"))
    yield launcher
    await launcher.aclose()


def ranks(count: int, **args: str) -> list[ProcessSpec]:
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return [ProcessSpec(f"trainer-{n}", RANK, args, env=path) for n in range(count)]


async def close(children: list[Child]) -> None:
    await asyncio.gather(*(child.aclose(grace_s=2.0) for child in children))


async def test_its_processes_share_a_master_and_the_death_of_one_is_noticed(
    launcher: Launcher, tmp_path: Path
) -> None:
    children = await launcher.launch(ranks(2))
    assert [child.hello["RANK"] for child in children] == ["0", "1"]
    assert (
        len({(child.hello["MASTER_ADDR"], child.hello["MASTER_PORT"]) for child in children}) == 1
    )
    assert [os.getpriority(os.PRIO_PROCESS, child.pid) for child in children] == [
        os.getpriority(os.PRIO_PROCESS, 0) + 1
    ] * 2
    assert children[0].log_path == tmp_path / "logs" / "trainer-0.log"
    os.kill(children[1].pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await first_exit(children) is children[1]
    await close(children)


async def test_a_process_that_fails_to_start_ends_the_others(launcher: Launcher) -> None:
    with pytest.raises((ProcessError, ChildDiedError), match="trainer-1 "):
        await launcher.launch(ranks(2, fails="1"))


def groups() -> list[TrajectoryGroup]:
    """Two siblings, of which one did better: it answered with other bytes."""

    def sibling(name: str, answer: list[int], reward: float) -> Trajectory:
        tokens, mask = [10, 11, *answer], [False, False, *[True] * len(answer)]
        return Trajectory(
            *(name, "task", tokens, mask, [-5.0 * one for one in mask]),
            *([0 if one else -1 for one in mask], [1.0] * len(tokens)),
            turn_of_token=[0 if one else -1 for one in mask],
            reward=reward,
        )

    pair = (sibling("good", [20, 21, 22], 1.0), sibling("bad", [30, 31], 0.0))
    return [TrajectoryGroup("g", "task", pair)]


def weights_of(update: WeightUpdate) -> bytes:
    assert update.path is not None
    return (Path(update.path) / "model.safetensors").read_bytes()


def make_trainer(log_dir: Path, *, preset: PresetSpec | None = None, **settings: Any) -> Trainer:
    setup = trainer_setup(
        resolve_model("tiny"), log_dir, preset=preset, learning_rate=1e-2, **settings
    )
    return load_plugins().configure("trainer", "plain")(setup)


async def test_its_trainer_takes_real_steps_and_goes_on_from_a_checkpoint_bit_by_bit(
    installed: str, tmp_path: Path
) -> None:
    trainer, again = make_trainer(tmp_path), make_trainer(tmp_path)
    await trainer.start()
    first = await trainer.step(groups(), version=0, timeout_s=60)
    assert first["num_updates"] == 1
    assert first["num_trained"] == 5
    assert first["grad_norm"] > 0
    await trainer.save(tmp_path / "checkpoint", {"note": 7})
    expected = await trainer.step(groups(), version=1, timeout_s=60)
    published = await trainer.publish(2)
    await again.start()
    assert await again.load(tmp_path / "checkpoint") == {"note": 7}
    assert await again.step(groups(), version=1, timeout_s=60) == expected
    assert expected["loss"] != first["loss"]
    repeated = await again.publish(2)
    assert weights_of(published) == weights_of(repeated)
    await trainer.aclose()
    await again.aclose()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"num_minibatches": 2}, "in one update a step"),
        ({"preset": PresetSpec("areal_sdk.algorithms.presets:ppo", {}, "ppo")}, "what ppo reads"),
    ],
    ids=["minibatches", "critic"],
)
def test_its_trainer_refuses_what_it_cannot_do_before_anything_starts(
    settings: dict[str, Any], why: str, installed: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        make_trainer(tmp_path, **settings)


@pytest.mark.long
def test_a_real_run_trains_with_both(installed: str, tmp_path: Path) -> None:
    run = start_training(
        tmp_path,
        *("--launcher", "prefix", "--set", "trainer.name=plain"),
        env={"PYTHONPATH": installed},
        run__steps=3,
        rollout__nodes=2,
    )
    output = finish(run)
    losses = curve(tmp_path)
    assert sorted(losses) == [1, 2, 3], output
    steps = read_metrics(run_dir(tmp_path).metrics, kind="step")
    assert all(row["train/num_updates"] == 1 and row["train/grad_norm"] > 0 for row in steps)
    logs = {path.stem for path in run_dir(tmp_path).logs.glob("*.log")}
    assert {"engine", "node-0", "node-1"} <= logs, "the launcher placed them"
    ledger = run_dir(tmp_path).read_ledger()
    assert ledger is not None
    assert ledger["trained"] == 3 * 16


@pytest.mark.long
def test_its_launcher_places_ranks_of_the_built_in_trainer_with_the_same_losses(
    installed: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"run__deterministic": True, "run__steps": 2, "trainer__ranks": 2}
    here = finish(start_training(tmp_path / "here", **settings))
    env = {"PYTHONPATH": installed}
    there = finish(start_training(tmp_path / "there", "--launcher", "prefix", env=env, **settings))
    assert curve(tmp_path / "there") == curve(tmp_path / "here"), here + there
