"""The settings of a run: their declarations (`sections`), and how files are read (`loading`).

Precedence, low to high: defaults, `--config run.toml`, `--set a.b=c`, a command's own flags.
An unknown key is an error that names the nearest known one.
"""

from areal_sdk.config.loading import (
    explain,
    known_keys,
    load_config,
    parse_config,
    read_settings,
    read_toml,
    with_absolute_paths,
)
from areal_sdk.config.root import Config
from areal_sdk.config.sections.base import NonNegative, Positive, Seconds, Section, sections_in
from areal_sdk.config.sections.learning import (
    AlgorithmSection,
    FinetuneSection,
    LoraSection,
    PolicySection,
    SftSection,
    TrainerSection,
)
from areal_sdk.config.sections.playing import (
    EvalSection,
    MixtureSection,
    RolloutSection,
    RunSection,
)
from areal_sdk.config.sections.services import ClusterSection, EngineSection, GatewaySection
from areal_sdk.config.sections.serving import Quota, ServeSection
from areal_sdk.config.tables import REMOVED
from areal_sdk.config.unused import idle_settings, without_nodes

__all__ = [
    "REMOVED",
    "AlgorithmSection",
    "ClusterSection",
    "Config",
    "EngineSection",
    "EvalSection",
    "FinetuneSection",
    "GatewaySection",
    "MixtureSection",
    "LoraSection",
    "NonNegative",
    "PolicySection",
    "Positive",
    "Quota",
    "RolloutSection",
    "RunSection",
    "Seconds",
    "Section",
    "ServeSection",
    "SftSection",
    "TrainerSection",
    "explain",
    "idle_settings",
    "known_keys",
    "load_config",
    "parse_config",
    "read_settings",
    "read_toml",
    "sections_in",
    "with_absolute_paths",
    "without_nodes",
]
