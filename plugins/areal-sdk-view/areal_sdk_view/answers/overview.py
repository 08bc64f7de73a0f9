"""One run: its line in the list, settings, verdict, notices, ledger, and the splits of its episodes."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from areal_sdk.records import FollowedRun, overview_of
from areal_sdk_view.notes import read_note


def why(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The faults of the run, the likely cause first."""
    return run.why().to_json()


def describe(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    run_dir = run.run_dir
    overview = overview_of(run_dir.path)
    verdict = run.verdict()
    live = run_dir.read_live()
    splits = Counter(one.split for one in run.episodes)
    return {
        "overview": None if overview is None else overview.to_json(),
        "settings": run_dir.read_config(),
        "plugins": run_dir.read_plugins(),
        "verdict": None
        if verdict is None
        else {"missing": verdict.missing, "figures": verdict.figures, "cure": verdict.cure},
        "note": read_note(run_dir.path),
        "ledger": run_dir.read_ledger(),
        "is_running": run_dir.is_in_use(),
        "live": live,
        "waits": (live or {}).get("waits", []),
        "num_episodes": len(run.episodes),
        "num_unreadable": run.num_unreadable,
        "splits": dict(splits),
        "dropped": Counter(str(one.dropped) for one in run.episodes if one.dropped),
        "logs": sorted(path.name for path in run_dir.logs.glob("*.log")),
    }
