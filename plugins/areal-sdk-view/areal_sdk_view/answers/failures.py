"""Episodes that went wrong, in groups: by how they were dropped, by error, finish and last calls. Deterministic."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from areal_sdk.records import EpisodeSummary, FollowedRun
from areal_sdk_view.answers.episodes import row_of

MAX_GROUPS = 60
RARE = 0.002
"""Share of the failed episodes: texts that fewer of them end with are one group."""
RARE_TEXT = "(rare texts)"
EXAMPLES = 5
BINS = 24
_BY_CHANCE = re.compile(
    r"(?P<said>'[^']{0,200}'|\"[^\"]{0,200}\"|(?:/[\w.\-]+){2,})|0x[0-9a-f]+|\d+(?:\.\d+)?"
)
"""Quotes and paths, and numbers."""


def group(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The groups of failed episodes of `split`, largest first, each with its course over the run and examples."""
    split = query.get("split") or "train"
    of_split = [one for one in run.episodes if one.split == split]
    rewards = [one.reward for one in of_split if one.reward is not None]
    worst = min(rewards, default=0.0)
    has_spread = bool(rewards) and max(rewards) > worst
    found: dict[tuple[str, str], list[tuple[int, EpisodeSummary]]] = defaultdict(list)
    for place, one in enumerate(of_split):
        key = kind_of(one, worst if has_spread else None)
        if key is not None:
            found[key].append((place, one))
    found = _joined(found, least=RARE * sum(map(len, found.values())))
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        "splits": sorted({one.split for one in run.episodes}),
        "split": split,
        "num": len(of_split),
        "num_failed": sum(len(members) for members in found.values()),
        "num_groups": len(ranked),
        "groups": [_group(key, members, len(of_split)) for key, members in ranked[:MAX_GROUPS]],
    }


def _joined(
    found: Mapping[tuple[str, str], list[tuple[int, EpisodeSummary]]], *, least: float
) -> dict[tuple[str, str], list[tuple[int, EpisodeSummary]]]:
    """The groups, those with fewer members than `least` as one group of their kind."""
    joined: dict[tuple[str, str], list[tuple[int, EpisodeSummary]]] = defaultdict(list)
    for (kind, text), members in found.items():
        joined[kind, text if len(members) > least else RARE_TEXT] += members
    return {key: sorted(members, key=lambda member: member[0]) for key, members in joined.items()}


def _group(
    key: tuple[str, str], members: list[tuple[int, EpisodeSummary]], num: int
) -> dict[str, Any]:
    kind, text = key
    bins = Counter(place * BINS // num for place, _ in members)
    return {
        "kind": kind,
        "text": text,
        "num": len(members),
        "tasks": len({one.task_id for _, one in members}),
        "over": [bins[n] for n in range(BINS)],
        "examples": [
            row_of(one) for _, one in members[:: max(1, len(members) // EXAMPLES)][:EXAMPLES]
        ],
    }


def kind_of(one: EpisodeSummary, worst: float | None) -> tuple[str, str] | None:
    """The group of an episode: what kind of failure, and its text without what differs by chance; None for a success."""
    if one.error:
        return (str(one.dropped or "error"), normalised(one.error))
    if one.dropped:
        return (f"dropped: {one.dropped}", "")
    if one.success is False or (one.success is None and worst is not None and one.reward == worst):
        return ("no success", normalised(one.text))
    return None


def normalised(text: str) -> str:
    """`text` without numbers, quotes and paths: what is left names the kind of a failure.

    >>> normalised("KeyError: 'alpha7' in /tmp/run/agent.py line 31")
    'KeyError: … in … line #'
    """
    return _BY_CHANCE.sub(lambda found: "…" if found["said"] else "#", text)[:120]
