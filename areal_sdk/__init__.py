"""Agentic multi-turn RL: write an agent, register a reward, train."""

import importlib
from typing import TYPE_CHECKING, Any

from areal_sdk.agent import Agent, EpisodeContext, RolloutWorkflow
from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.environment import Environment, StepResult
from areal_sdk.errors import (
    ArealError,
    ConfigError,
    ContextOverflowError,
    EngineError,
    EpisodeError,
)
from areal_sdk.hookspecs import hookimpl
from areal_sdk.types import Episode, FinishReason, Message, Outcome, Task, Turn, WeightUpdate

if TYPE_CHECKING:
    from areal_sdk.loop import aio as aio
    from areal_sdk.loop import evaluate, train
    from areal_sdk.records.run import Run

__all__ = [
    "Agent",
    "ArealError",
    "ConfigError",
    "ContextOverflowError",
    "EngineError",
    "EngineInfo",
    "Environment",
    "Episode",
    "EpisodeContext",
    "EpisodeError",
    "FinishReason",
    "GenerateChunk",
    "GenerateRequest",
    "InferenceEngine",
    "Message",
    "Outcome",
    "RolloutWorkflow",
    "Run",
    "StepResult",
    "Task",
    "Turn",
    "WeightUpdate",
    "evaluate",
    "hookimpl",
    "train",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "aio"})


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for, since `train` and `evaluate` load the whole loop."""
    if name == "Run":
        return importlib.import_module("areal_sdk.records.run").Run
    if name == "aio":
        return importlib.import_module("areal_sdk.loop.aio")
    if name in ("evaluate", "train"):
        return getattr(importlib.import_module("areal_sdk.loop"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
