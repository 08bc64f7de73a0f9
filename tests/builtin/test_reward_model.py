"""The reward `model`, in a worker of its own as a run has it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from areal_sdk.builtin.reward_model import model
from areal_sdk.errors import ConfigError, RewardError
from areal_sdk.fsdp.checkpoint import export_model
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.options import validate_options
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.testing import make_episode
from areal_sdk.trainer import Demonstration


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RankTrainer]:
    """A run directory whose final weights are a reward model, and the trainer that wrote it."""
    root = tmp_path_factory.mktemp("judge")
    trainer = RankTrainer(TrainerSpec(make_tiny_model(root / "tiny"), learns_rewards=True))
    rows = [Demonstration((1, 2, 3), (), 1.0), Demonstration((1, 9), (), -1.0)]
    for _ in range(3):
        trainer.learn(rows, learning_rate=1e-2, divisor=1.0)
    export_model(trainer, root / "run" / "checkpoints" / "final", dtype=torch.float32)
    return root / "run", trainer


async def test_it_judges_the_recorded_tokens(run: tuple[Path, RankTrainer], tmp_path: Path) -> None:
    path, trainer = run
    options = validate_options(model, {"path": str(path)}, table="reward.model", skip=1)
    episode = make_episode("yes")
    [expected] = trainer.score([Demonstration(episode.turns[-1].tokens, ())])
    assert expected != 0.0
    spec = RewardSpec.of("model", model, options=options)
    async with RewardPool([spec], log_dir=tmp_path, size=1) as pool:
        outcome = await pool.score(episode)
        assert outcome.reward == pytest.approx(expected, rel=2e-2)  # trained in bfloat16
        with pytest.raises(RewardError, match="no turn to judge"):
            await pool.score(make_episode(None))


def test_what_is_no_reward_model_is_refused_before_a_run(tmp_path: Path) -> None:
    policy = make_tiny_model(tmp_path / "policy")
    for path, problem in ((tmp_path / "missing", "no model in"), (policy, "is no reward model")):
        with pytest.raises(ConfigError, match=problem):
            validate_options(model, {"path": str(path)}, table="reward.model", skip=1)
    with pytest.raises(ConfigError, match="needs path"):
        validate_options(model, {}, table="reward.model", skip=1)


def test_naming_it_imports_no_torch() -> None:
    code = "import sys, areal_sdk.builtin.reward_model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
