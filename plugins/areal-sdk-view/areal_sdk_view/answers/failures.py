"""Episodes that went wrong, in groups of those that ended alike, each named by what its members have in common."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.records import EpisodeSummary, FollowedRun
from areal_sdk_view.answers.endings import Ending, endings_of
from areal_sdk_view.answers.likeness import cluster, in_common
from areal_sdk_view.library import NotThereError, OpenRun

MAX_GROUPS = 60
MAX_NAMED = 20
"""Groups of one kind: where endings are random text, nearly every one is a group of its own."""
MAX_READ = 500
"""Maximum number of episodes of one kind that are read; the size of a group of a larger kind is an estimate."""
RARE = 0.002
"""Share of the failed episodes: groups that are no larger are one group of their kind."""
EXAMPLES = 5
BINS = 24

JSON = dict[str, Any]


def group(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """The groups of failed episodes of `split`, largest first, each with its course over the versions and examples.

    `name` is what the members have in common, by field: nothing for the groups of a kind that are too small to be
    shown, or too many, which are one (`is_rare`). `num` is an estimate if only some episodes of the kind were read.
    """
    split = split_of(run, query)
    of_split = [one for one in run.episodes if one.split == split]
    failed = _by_kind(of_split)
    found = _groups(run, failed, split)
    versions = [one.version or 0 for one in of_split]
    low, high = min(versions, default=0), max(versions, default=0)
    return {
        "splits": sorted({one.split for one in run.episodes}),
        "split": split,
        "num": len(of_split),
        "num_failed": sum(map(len, failed.values())),
        "num_groups": len(found),
        "max_read": MAX_READ,
        "versions": [low, high],
        "groups": [{**one, **_course(one.pop("members"), low, high)} for one in found[:MAX_GROUPS]],
    }


def members_of(run: OpenRun, name: str) -> set[str]:
    """The ids of the episodes of the group `name`, which is its split and its digest."""
    split = name.rpartition(":")[0]
    failed = _by_kind([one for one in run.episodes if one.split == split])
    for group in _groups(run, failed, split):
        if group["id"] == name:
            return {one.id for one in group["members"]}
    raise NotThereError(f"no failure group {name!r}: the run went on, so open its failures again")


def split_of(run: FollowedRun, query: Mapping[str, str]) -> str:
    """The split that a query names; without one `train`, or the first that the run has."""
    splits = sorted({one.split for one in run.episodes})
    default = "train" if "train" in splits or not splits else splits[0]
    return query.get("split") or default


def _by_kind(of_split: Sequence[EpisodeSummary]) -> Mapping[str, list[EpisodeSummary]]:
    """The failed episodes, by the kind of their failure."""
    rewards = [one.reward for one in of_split if one.reward is not None]
    worst = min(rewards, default=0.0)
    has_spread = bool(rewards) and max(rewards) > worst
    found: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for one in of_split:
        if kind := kind_of(one, worst if has_spread else None):
            found[kind].append(one)
    return found


def _groups(run: OpenRun, failed: Mapping[str, Sequence[EpisodeSummary]], split: str) -> list[JSON]:
    least = RARE * sum(map(len, failed.values()))
    found = [
        group
        for kind, members in failed.items()
        for group in _of_kind(run, kind, members, least=least, split=split)
    ]
    return sorted(found, key=lambda one: (-one["num"], one["kind"], one["id"]))


def _of_kind(
    run: OpenRun, kind: str, failed: Sequence[EpisodeSummary], *, least: float, split: str
) -> list[JSON]:
    read = _drawn(failed)
    by_ending: dict[Ending, list[int]] = defaultdict(list)
    for place, ending in enumerate(endings_of(run, read, run.endings)):
        by_ending[ending].append(place)
    scale = len(failed) / len(read)
    sizes = {ending: len(places) for ending, places in by_ending.items()}
    groups = [(sum(map(sizes.__getitem__, one)), one) for one in cluster(sizes)]
    most = [0, *sorted(size for size, _ in groups)][:-MAX_NAMED]
    least = max([least / scale, *most[-1:]])
    named = [one for size, one in groups if size > least]
    rare = [ending for size, one in groups if size <= least for ending in one]
    found = []
    for endings in [*named, rare] if rare else named:
        counts = {one: sizes[one] for one in endings}
        places = sorted(place for one in endings for place in by_ending[one])
        typical = "rare" if endings is rare else repr(min(counts, key=lambda e: (-counts[e], e)))
        digest = hashlib.blake2b(f"{kind} {typical}".encode(), digest_size=5).hexdigest()
        group = {"kind": kind, "num": round(scale * len(places)), "id": f"{split}:{digest}"}
        size = {"num_endings": len(endings), "is_estimate": scale > 1.0, "is_rare": endings is rare}
        name = {} if endings is rare else in_common(counts)
        found.append({**group, **size, "name": name, "members": [read[one] for one in places]})
    return found


def _drawn(failed: Sequence[EpisodeSummary]) -> Sequence[EpisodeSummary]:
    """`MAX_READ` of the episodes or fewer, drawn by their ids: most of them stay the same while the run goes on."""
    if len(failed) <= MAX_READ:
        return failed
    digests = [hashlib.blake2b(one.id.encode(), digest_size=8).digest() for one in failed]
    drawn = sorted(range(len(failed)), key=digests.__getitem__)[:MAX_READ]
    return [failed[place] for place in sorted(drawn)]


def _course(members: Sequence[EpisodeSummary], low: int, high: int) -> JSON:
    """The number of tasks, of members over the versions, and some members as examples."""
    num_bins = min(BINS, high - low + 1)
    bins = Counter(((one.version or 0) - low) * num_bins // (high - low + 1) for one in members)
    examples = members[:: max(1, len(members) // EXAMPLES)][:EXAMPLES]
    shown = [{name: getattr(one, name) for name in ("id", "reward", "version")} for one in examples]
    tasks = len({one.task_id for one in members})
    return {"tasks": tasks, "over": [bins[n] for n in range(num_bins)], "examples": shown}


def kind_of(one: EpisodeSummary, worst: float | None) -> str:
    """The kind of failure of an episode; empty for a success."""
    if one.error:
        return str(one.dropped or "error")
    if one.dropped:
        return f"dropped: {one.dropped}"
    if one.success is False or (one.success is None and worst is not None and one.reward == worst):
        return "no success"
    return ""
