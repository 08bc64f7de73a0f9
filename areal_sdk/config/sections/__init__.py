"""A run's settings: one model per TOML section, defaults that are the recommendation."""

from areal_sdk.config.sections.base import (
    ENDLESS,
    JSON,
    Device,
    NonNegative,
    Port,
    Positive,
    Seconds,
    Section,
    sections_in,
)
from areal_sdk.config.sections.learning import (
    ADAPTER_LEARNING_RATE,
    ALL_LINEAR,
    AlgorithmSection,
    FinetuneSection,
    LoraSection,
    SftSection,
    TrainerSection,
)
from areal_sdk.config.sections.playing import (
    EngineSection,
    EvalSection,
    MixtureSection,
    RolloutSection,
    RunSection,
)
from areal_sdk.config.sections.serving import (
    GatewaySection,
    Quota,
    ServeSection,
    ToolFormatName,
)

__all__ = [
    "ALL_LINEAR",
    "ADAPTER_LEARNING_RATE",
    "AlgorithmSection",
    "Device",
    "ENDLESS",
    "EngineSection",
    "EvalSection",
    "FinetuneSection",
    "GatewaySection",
    "JSON",
    "LoraSection",
    "MixtureSection",
    "NonNegative",
    "Port",
    "Positive",
    "Quota",
    "RolloutSection",
    "RunSection",
    "Seconds",
    "Section",
    "ServeSection",
    "SftSection",
    "ToolFormatName",
    "TrainerSection",
    "sections_in",
]
