"""Episodes that went wrong, in groups of those that ended alike, each named by what its members have in common."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.records import EpisodeSummary, FollowedRun
from areal_sdk_view.answers.endings import Ending, endings_of
from areal_sdk_view.answers.likeness import cluster, in_common
from areal_sdk_view.library import NotThereError, OpenRun

MAX_GROUPS = 60
MAX_READ = 500
"""Episodes of one kind that are read; the size of a group of a larger kind is an estimate."""
RARE = 0.002
"""Share of the failed episodes: groups that are no larger are one group of their kind."""
EXAMPLES = 5
BINS = 24


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Episodes of one kind that ended alike."""

    kind: str
    name: Mapping[str, str]
    """The text that the members have in common, by field; empty for a group of rare endings."""
    members: Sequence[EpisodeSummary]
    """The episodes that were read, oldest first."""
    num: int
    """The size of the group; an estimate if only some episodes of its kind were read."""
    is_estimate: bool
    num_endings: int
    is_rare: bool
    """Whether it joins all groups of its kind that are too small to be shown."""
    id: str


def group(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The groups of failed episodes of `split`, largest first, each with its course over the versions and examples."""
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
        "groups": [_row(group, low, high) for group in found[:MAX_GROUPS]],
    }


def members_of(run: OpenRun, name: str) -> set[str]:
    """The ids of the episodes of the group `name`, which is its split and its digest."""
    split = name.rpartition(":")[0]
    failed = _by_kind([one for one in run.episodes if one.split == split])
    for group in _groups(run, failed, split):
        if group.id == name:
            return {one.id for one in group.members}
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


def _groups(
    run: OpenRun, failed: Mapping[str, Sequence[EpisodeSummary]], split: str
) -> list[FailureGroup]:
    least = RARE * sum(map(len, failed.values()))
    found = [
        group
        for kind, members in failed.items()
        for group in _of_kind(run, kind, members, least=least, split=split)
    ]
    return sorted(found, key=lambda group: (-group.num, group.kind, group.id))


def _of_kind(
    run: OpenRun, kind: str, failed: Sequence[EpisodeSummary], *, least: float, split: str
) -> list[FailureGroup]:
    read = _drawn(failed)
    by_ending: dict[Ending, list[int]] = defaultdict(list)
    for place, ending in enumerate(endings_of(run, read, run.endings)):
        by_ending[ending].append(place)
    scale = len(failed) / len(read)
    named: list[list[Ending]] = []
    rare: list[Ending] = []
    for endings in cluster({ending: len(places) for ending, places in by_ending.items()}):
        is_rare = scale * sum(len(by_ending[one]) for one in endings) <= least
        rare.extend(endings) if is_rare else named.append(endings)
    found = []
    for endings in [*named, rare] if rare else named:
        counts = {one: len(by_ending[one]) for one in endings}
        places = sorted(place for one in endings for place in by_ending[one])
        typical = "rare" if endings is rare else repr(min(counts, key=lambda e: (-counts[e], e)))
        digest = hashlib.blake2b(f"{kind} {typical}".encode(), digest_size=5).hexdigest()
        found.append(
            FailureGroup(
                kind=kind,
                name={} if endings is rare else in_common(counts),
                members=[read[place] for place in places],
                num=round(scale * len(places)),
                is_estimate=len(read) < len(failed),
                num_endings=len(endings),
                is_rare=endings is rare,
                id=f"{split}:{digest}",
            )
        )
    return found


def _drawn(failed: Sequence[EpisodeSummary]) -> Sequence[EpisodeSummary]:
    """`MAX_READ` of the episodes or fewer, drawn by their ids: most of them stay the same while the run goes on."""
    if len(failed) <= MAX_READ:
        return failed
    digests = [hashlib.blake2b(one.id.encode(), digest_size=8).digest() for one in failed]
    drawn = sorted(range(len(failed)), key=digests.__getitem__)[:MAX_READ]
    return [failed[place] for place in sorted(drawn)]


def _row(group: FailureGroup, low: int, high: int) -> dict[str, Any]:
    num_bins = min(BINS, high - low + 1)
    bins = Counter(
        ((one.version or 0) - low) * num_bins // (high - low + 1) for one in group.members
    )
    examples = group.members[:: max(1, len(group.members) // EXAMPLES)][:EXAMPLES]
    return {
        "id": group.id,
        "kind": group.kind,
        "name": group.name,
        "num": group.num,
        "is_estimate": group.is_estimate,
        "is_rare": group.is_rare,
        "num_endings": group.num_endings,
        "tasks": len({one.task_id for one in group.members}),
        "over": [bins[n] for n in range(num_bins)],
        "examples": [
            {"id": one.id, "reward": one.reward, "version": one.version} for one in examples
        ],
    }


def kind_of(one: EpisodeSummary, worst: float | None) -> str:
    """The kind of failure of an episode; empty for a success."""
    if one.error:
        return str(one.dropped or "error")
    if one.dropped:
        return f"dropped: {one.dropped}"
    if one.success is False or (one.success is None and worst is not None and one.reward == worst):
        return "no success"
    return ""
