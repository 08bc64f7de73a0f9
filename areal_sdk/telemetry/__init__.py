"""What a run says about itself: books, metrics, episodes, waits, and the directory they live in."""

from areal_sdk.telemetry.episodes import EpisodeRecord, EpisodeSummary, EpisodeWriter
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.telemetry.metrics import MetricsLog, Rate
from areal_sdk.telemetry.rundir import RunDir
from areal_sdk.telemetry.waits import waiting

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
