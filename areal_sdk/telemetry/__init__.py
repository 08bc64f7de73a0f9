"""The record of a run: ledger, metrics, episodes, waits, and the directory that holds them."""

from areal_sdk.telemetry.episode_index import EpisodeSummary
from areal_sdk.telemetry.episode_log import EpisodeRecord, EpisodeWriter
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.telemetry.live.waits import waiting
from areal_sdk.telemetry.metrics import MetricsLog, Rate
from areal_sdk.telemetry.run_dir import RunDir

__all__ = [
    "DropReason",
    "EpisodeRecord",
    "EpisodeSummary",
    "EpisodeWriter",
    "Ledger",
    "MetricsLog",
    "Rate",
    "RunDir",
    "waiting",
]
