"""The inference engine contract. Subclass `InferenceEngine` to add a backend."""

from areal_sdk.engine.contract import (
    ConfiguredEngine,
    EngineClient,
    EngineDeath,
    EngineEntrance,
    EngineInfo,
    EngineSettings,
    InferenceEngine,
    Tell,
)
from areal_sdk.engine.requests import (
    SAMPLING_BOUNDS,
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    Sampling,
    collect,
)

__all__ = [
    "ConfiguredEngine",
    "EngineClient",
    "EngineDeath",
    "EngineEntrance",
    "EngineInfo",
    "EngineSettings",
    "GenerateChunk",
    "GenerateRequest",
    "GenerateResult",
    "InferenceEngine",
    "SAMPLING_BOUNDS",
    "Sampling",
    "Tell",
    "collect",
]
