"""Agentic multi-turn RL: write an agent, register a reward, train."""

from areal_sdk.agent import Agent, EpisodeContext, RolloutWorkflow
from areal_sdk.engine import GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.environment import Environment, StepResult
from areal_sdk.errors import ArealError, ConfigError, EpisodeError
from areal_sdk.hookspecs import hookimpl
from areal_sdk.types import Episode, Message, Outcome, Task, Trajectory, Turn, WeightUpdate

__all__ = [
    "Agent",
    "ArealError",
    "ConfigError",
    "Environment",
    "Episode",
    "EpisodeContext",
    "EpisodeError",
    "GenerateChunk",
    "GenerateRequest",
    "InferenceEngine",
    "Message",
    "Outcome",
    "RolloutWorkflow",
    "StepResult",
    "Task",
    "Trajectory",
    "Turn",
    "WeightUpdate",
    "hookimpl",
]

__version__ = "0.1.0"
