"""Learning from whoever calls: a training run whose episodes are the sessions of callers."""

from typing import NoReturn

from areal_sdk.agent import EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.gateways import read_users
from areal_sdk.loop.models import find_trained_model
from areal_sdk.loop.program import Program
from areal_sdk.loop.runs import Plan, check_names
from areal_sdk.plugins import Plugins
from areal_sdk.types import Task


def make_live_plan(config: Config, *, plugins: Plugins) -> Plan:
    """What there is to check before anything heavy starts: callers bring agents and tasks."""
    for name in ("agent", "env", "tasks", "eval_tasks"):
        if getattr(config, name):
            raise ConfigError(f"serve.learn learns from whoever calls: leave {name} out")
    read_users(config)
    check_names(config, plugins)
    return Plan(
        config,
        plugins,
        Program("serve", _nobody),
        find_trained_model(config, plugins=plugins),
        train_tasks=(),
        eval_tasks={},
    )


async def _nobody(task: Task, context: EpisodeContext) -> NoReturn:
    raise AssertionError("callers play, not an agent of ours")
