"""Tools for tests of your agents, rewards, environments, engines, launchers and trainers. Imports no torch."""

from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.testing.conformance import ConformanceError, registered
from areal_sdk.testing.engines import check_engine
from areal_sdk.testing.environments import check_environment
from areal_sdk.testing.messages import assistant, make_episode, tool_call
from areal_sdk.testing.plugins import check_plugin
from areal_sdk.testing.recorded_run import RecordedRun
from areal_sdk.testing.rewards import check_reward
from areal_sdk.testing.run_agent import run_agent
from areal_sdk.testing.scripted_engine import Fault, Reply, ScriptedEngine, scripted_logprob
from areal_sdk.testing.setups import launcher_setup, trainer_setup
from areal_sdk.testing.workflows import check_workflow

__all__ = [
    "ConformanceError",
    "Fault",
    "RecordedRun",
    "Reply",
    "ScriptedEngine",
    "assistant",
    "check_engine",
    "check_environment",
    "check_plugin",
    "check_reward",
    "check_workflow",
    "launcher_setup",
    "make_episode",
    "registered",
    "run_agent",
    "scripted_logprob",
    "to_trajectories",
    "tool_call",
    "trainer_setup",
]
