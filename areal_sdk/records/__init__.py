"""Looking at runs, live or a year later: conditions on episodes, lists, comparisons, reports.

The modules of this package read run directories, and nothing else. Authors of tools and of trainers import from here.
"""

from areal_sdk.records.comparison import differing_settings, figures_of
from areal_sdk.records.curves import PANELS
from areal_sdk.records.estimates import Interval, mean_of_tasks, wilson
from areal_sdk.records.follow import FollowedRun
from areal_sdk.records.overview import RunFate, RunOverview, overview_of
from areal_sdk.records.tokens import EpisodeTokens, TurnTokens
from areal_sdk.records.where import parse_condition
from areal_sdk.telemetry import EpisodeRecord, EpisodeSummary
from areal_sdk.telemetry.checksums import describe, first_change
from areal_sdk.telemetry.directories import begin_directory, commit_directory
from areal_sdk.telemetry.episode_log import LEARNT
from areal_sdk.telemetry.files import append_json_line, read_json_lines
from areal_sdk.telemetry.parts import RunPart, list_files, list_weights
from areal_sdk.telemetry.token_log import TokenFlag

__all__ = [
    "LEARNT",
    "PANELS",
    "EpisodeRecord",
    "EpisodeSummary",
    "EpisodeTokens",
    "FollowedRun",
    "Interval",
    "RunPart",
    "RunFate",
    "RunOverview",
    "TokenFlag",
    "TurnTokens",
    "append_json_line",
    "begin_directory",
    "commit_directory",
    "describe",
    "differing_settings",
    "figures_of",
    "first_change",
    "list_files",
    "list_weights",
    "mean_of_tasks",
    "overview_of",
    "parse_condition",
    "read_json_lines",
    "wilson",
]
