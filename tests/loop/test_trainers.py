"""Settings name a trainer: the built-in one, or one that a plugin brings."""

import json
import shutil
from pathlib import Path

import pytest

from areal_sdk.config import Config, machine, parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.launch import LocalLauncher
from areal_sdk.launch.torchrun import TorchrunLauncher
from areal_sdk.launcher import START_TIMEOUT_S
from areal_sdk.loop.plan.models import find_model
from areal_sdk.loop.plan.parts import find_preset, make_trainer
from areal_sdk.loop.services.opening import open_launcher
from areal_sdk.models import resolve_model
from areal_sdk.plugins import load_plugins
from areal_sdk.telemetry import RunDir
from areal_sdk.trainer import Trainer
from tests.loop.runs import (
    AGENT,
    SCRIPTED,
    finish,
    refused,
    resume_training,
    run_dir,
    start_training,
    training,
)

COUNTING = """

import json
from pathlib import Path

from areal_sdk.trainer import IdleGroups, Trainer, TrainerInfo


class Counting(Trainer):
    # Learns nothing: counts the trajectories, and publishes the weights as they are.

    def __init__(self, setup, *, weight: float = 1.0):
        assert (setup.model_dir / "config.json").is_file()
        self.model_dir, self.weight = setup.model_dir, weight
        self.num_seen = 0

    async def start(self):
        self.notices = ("counting begins",)

    @property
    def info(self):
        return TrainerInfo(idle_groups=IdleGroups.NONE)

    async def step(self, groups, *, version, timeout_s):
        assert all(v <= version for g in groups for t in g.trajectories for v in t.versions)
        seen = sum(len(group.trajectories) for group in groups)
        self.num_seen += seen
        return {
            "num_updates": 1.0,
            "num_trained": float(seen),
            "num_tokens": 0.0,
            "loss": 0.0,
            "seen": self.weight * self.num_seen,
        }

    async def publish(self, version):
        return areal_sdk.WeightUpdate(version, None)

    async def save(self, directory, extra):
        directory.mkdir(parents=True)
        (directory / "counts.json").write_text(json.dumps([self.num_seen, dict(extra)]))

    async def load(self, directory):
        self.num_seen, extra = json.loads((directory / "counts.json").read_text())
        return extra

    async def export(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "tokenizer.json"):
            (directory / name).write_bytes((self.model_dir / name).read_bytes())

    async def aclose(self):
        pass


@areal_sdk.hookimpl
def register_trainers(register):
    register("counting", Counting)
"""


@pytest.mark.parametrize("name", ["local", "torchrun"])
async def test_ranks_may_take_long_to_load_a_large_model(tmp_path: Path, name: str) -> None:
    config = parse_config({"cluster": {"launcher": name}})
    run = RunDir.create(tmp_path, "run")
    opened = open_launcher(config, plugins=load_plugins(), run_dir=run, say=lambda text: None)
    async with opened as launcher:
        assert isinstance(launcher, (LocalLauncher, TorchrunLauncher))
        assert launcher.start_timeout_s == START_TIMEOUT_S


def test_a_launcher_that_nobody_brings_is_named_before_anything_starts(tmp_path: Path) -> None:
    output = refused(*training(tmp_path, cluster__launcher="rai"))
    assert "unknown launcher 'rai'" in output
    assert "did you mean 'ray'?" in output


def made(config: Config, model_dir: Path, *, log_dir: Path) -> Trainer:
    plugins = load_plugins()
    preset = find_preset(config, plugins)
    return make_trainer(
        config, model_dir, plugins=plugins, preset=preset, log_dir=log_dir, say=print
    )


async def test_the_bounds_of_credit_reach_the_trainer(tmp_path: Path) -> None:
    bounds = {"discount": 0.5, "max_surprise": 3.0}
    algorithm = {"name": "running_baseline", "running_baseline": bounds}
    config = parse_config({"algorithm": algorithm})
    trainer = made(config, resolve_model("tiny"), log_dir=tmp_path)
    assert isinstance(trainer, FSDPTrainer)
    assert trainer.spec.preset.options == bounds
    assert trainer.spec.preset.reference.endswith(":running_baseline")
    await trainer.aclose()


@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
async def test_weights_are_published_in_the_dtype_of_the_checkpoint_unless_one_is_asked_for(
    stored: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "has_bfloat16", lambda: True)
    model = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": stored}))
    trainer = made(parse_config({"engine": {"dtype": asked}}), model, log_dir=tmp_path)
    assert isinstance(trainer, FSDPTrainer)
    assert trainer.spec.publish_dtype == (stored if asked == "auto" else asked)


def test_a_plugin_brings_a_trainer_that_a_run_steps_saves_resumes_and_exports(
    tmp_path: Path,
) -> None:
    agent = tmp_path / "counting.py"
    agent.write_text(AGENT.read_text() + COUNTING)
    output = finish(
        start_training(
            tmp_path,
            *SCRIPTED,
            *("--set", "trainer.counting.weight=2.0", "--set", "trainer.name=counting"),
            agent=agent,
            rollout__dynamic_sampling=True,
            run__steps=2,
            run__checkpoint_every=1,
            run__keep_checkpoints=1,
        )
    )
    assert "counting begins" in output
    told = output.count("rollout.dynamic_sampling = True changes nothing")
    assert told == 2, "at the start, and in the last lines"
    run = run_dir(tmp_path)
    seen = [step["train/seen"] for step in run.read_steps()]
    trained = [step["ledger"]["trained"] for step in run.read_steps()]
    assert seen == [2.0 * count for count in trained]
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-000002"]
    assert (run.checkpoints / "final" / "config.json").is_file()
    assert find_model(str(run.path)) == run.checkpoints / "final"

    shutil.rmtree(run.checkpoints / "final")  # as of a run that was interrupted
    latest = run.checkpoints / "step-000002"
    assert find_model(str(run.path)) == find_model(str(latest)) == latest / "export"

    finish(resume_training(tmp_path, "--steps", "3"))
    last = run_dir(tmp_path).read_steps()[-1]
    assert (last["step"], last["version"]) == (3, 3)
    assert last["train/seen"] == 2.0 * last["ledger"]["trained"] > seen[-1]


ROUNDING = """

from safetensors.numpy import load_file, save_file

from areal_sdk.models.rounding import Rounding
from tests.loop.scripted import Idler


class Coarse(Idler):
    # Its engine samples weights in which nearly all of what was learnt is rounded away.

    async def publish(self, version):
        return areal_sdk.WeightUpdate(version, None, share_seen=0.05)

    async def export(self, directory):
        await super().export(directory)
        path = directory / "model.safetensors"
        lost = Rounding("bfloat16", seen=0.07, error=0.9)
        save_file(load_file(path), path, {"format": "pt", **lost.notes()})


@areal_sdk.hookimpl
def register_trainers(register):
    register("coarse", Coarse)
"""


def test_an_engine_that_hardly_sees_what_was_learnt_is_told_once_and_at_the_end(
    tmp_path: Path,
) -> None:
    agent = tmp_path / "rounding.py"
    agent.write_text(AGENT.read_text() + ROUNDING)
    output = finish(
        start_training(
            tmp_path,
            *SCRIPTED,
            *("--set", "trainer.name=coarse"),
            agent=agent,
            run__steps=12,
        )
    )
    steps = run_dir(tmp_path).read_steps()
    assert [step["train/share_seen"] for step in steps] == [0.05] * 12
    told = output.count("the engine samples rounded weights: 95 % of those")
    assert told == 2, "once when it is seen, and in the last lines"
    assert "checkpoints/final: in bfloat16 93 % of the weights that training changed" in output
    assert "--step 12 --dtype float32" in output


def test_a_trainer_that_nobody_brings_is_named_before_anything_starts(tmp_path: Path) -> None:
    output = refused(*training(tmp_path, trainer__name="fspd"))
    assert "unknown trainer 'fspd'" in output
    assert "did you mean 'fsdp'?" in output


def test_an_option_that_a_trainer_does_not_have_is_refused(tmp_path: Path) -> None:
    config = parse_config({"trainer": {"fsdp": {"sharding": "none"}}})
    with pytest.raises(ConfigError, match=r"\[trainer.fsdp\].*sharding"):
        made(config, resolve_model("tiny"), log_dir=tmp_path)
