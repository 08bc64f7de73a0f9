"""Reward functions of a run, in as many processes as it says (`rollout.reward_workers`)."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

from areal_sdk.config import parse_config
from areal_sdk.loop.plan.parts import reward_specs
from areal_sdk.loop.services.players import open_rewards
from areal_sdk.plugins import load_plugins


async def test_rewards_run_in_as_many_processes_as_the_config_says(tmp_path: Path) -> None:
    config = parse_config(
        {
            "model": "tiny",
            "rewards": {"exact_match": 1.0},
            "rollout": {"reward_workers": 3},
        }
    )
    async with AsyncExitStack() as stack:
        specs = reward_specs(config, load_plugins())
        await open_rewards(specs, config.rollout, tmp_path, stack)
    assert sorted(os.listdir(tmp_path)) == ["reward-0.log", "reward-1.log", "reward-2.log"]
