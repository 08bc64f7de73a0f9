"""A run: its line in the list, settings, verdict, ledger, faults, logs. Runs side by side: figures, other settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.records import FollowedRun, differing_settings, figures_of, overview_of
from areal_sdk_view.answers.held_out import MAX_SIDES
from areal_sdk_view.library import NotThereError
from areal_sdk_view.notes import read_note

MAX_RUNS = 100
"""Maximum number of runs whose curves are compared."""
LOG_PART = 100_000
"""Bytes of a log in one answer."""


def why(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The faults of the run, the likely cause first."""
    return run.why().to_json()


def describe(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    run_dir = run.run_dir
    if (about := overview_of(run_dir.path)) is None:
        raise NotThereError(f"{run_dir.config} has no model: these are no settings of a run")
    verdict, live = run.verdict(), run_dir.read_live()
    return {
        "overview": about.to_json(),
        "settings": run_dir.read_config(),
        "plugins": run_dir.read_plugins(),
        "verdict": verdict and {of: getattr(verdict, of) for of in ("missing", "figures", "cure")},
        "note": read_note(run_dir.path),
        "ledger": run_dir.read_ledger(),
        "is_running": run_dir.is_in_use(),
        "live": live,
        "waits": (live or {}).get("waits", []),
        "num_episodes": len(run.episodes),
        "num_unreadable": run.num_unreadable,
    }


def logs(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The end of the log `name`, up to byte `until`, and the size of each log. Without a name the newest. A link may
    lead out of the run: none is followed."""
    folder = run.run_dir.logs
    found = [] if folder.is_symlink() else sorted(folder.glob("*.log"))
    files = {one.name: one for one in found if one.is_file() and not one.is_symlink()}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    newest = max(files, key=lambda one: (sizes[one] > 0, files[one].stat().st_mtime_ns), default="")
    name = query.get("name") or newest
    if name and name not in files:
        raise NotThereError(f"no log {name!r} in this run")
    until = min(int(query.get("until") or sizes.get(name, 0)), sizes.get(name, 0))
    since = max(0, until - LOG_PART)
    text = b""
    if name:
        with os.fdopen(os.open(files[name], os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            file.seek(since)
            text = file.read(max(0, until - since))
    return {"sizes": sizes, "name": name, "since": since, "text": text.decode(errors="replace")}


def compare(paths: Mapping[str, Path]) -> dict[str, Any]:
    """The curves come from each run's own `events`: any number of runs costs one small answer each."""
    if len(paths) > MAX_RUNS:
        raise ValueError(f"{len(paths)} runs: compare at most {MAX_RUNS}")
    runs = {name: FollowedRun(path).run_dir for name, path in paths.items()}
    return {
        "runs": list(runs),
        "max_sides": MAX_SIDES,
        "figures": {name: figures_of(run) for name, run in runs.items()},
        "settings": differing_settings([run.read_config() for run in runs.values()]),
    }
