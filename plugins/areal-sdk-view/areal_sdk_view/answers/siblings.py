"""A group's attempts, aligned at the first token that differs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from areal_sdk.records import EpisodeRecord, EpisodeSummary, EpisodeTokens
from areal_sdk_view.answers.columns import columns_of
from areal_sdk_view.answers.episodes import row_of
from areal_sdk_view.answers.pieces import pieces_of
from areal_sdk_view.library import NotThereError, OpenRun

MAX_SIBLINGS = 64
MAX_TOKENS = 1500
"""Maximum number of tokens of an attempt after the point where it leaves the others."""
CONTEXT = 40
"""Tokens before that point that are shown unfolded."""


def align(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The attempts of `group`: what they have in common, and what each says after that.

    Attempts that stay together longer stand beside each other: each says how many of its tokens, after the common
    ones, are those of the attempt above.
    """
    group = query.get("group", "")
    found = run.of("group", group)[-MAX_SIBLINGS:] if group else []
    if not found:
        raise NotThereError(f"no group {group!r} in this run")
    records = [run.record(one) for one in found]
    paths = [_path(record, run.seen(record)[0]) for record in records]
    order = sorted(range(len(found)), key=lambda n: (paths[n]["tokens"], -(found[n].reward or 0.0)))
    common = _shared([paths[n]["tokens"] for n in (order[0], order[-1])]) if order else 0
    texts = pieces_of(run.run_dir.model)
    rows, above = [], None
    for n in order:
        path = paths[n]
        shared = 0 if above is None else _shared([above, path["tokens"]]) - common
        above = path["tokens"]
        rows.append({**_row(found[n], path, common, texts), "as_above": shared})
    prefix = paths[order[0]]["tokens"][:common]
    return {
        "group": group,
        "task": found[0].task_id,
        "num_common": common,
        "context": [texts.of(token) for token in prefix[-CONTEXT:]],
        "prefix": "".join(texts.of(token) for token in prefix),
        "rows": rows,
    }


def _row(one: EpisodeSummary, path: dict[str, Any], common: int, texts: Any) -> dict[str, Any]:
    shown = slice(common, common + MAX_TOKENS)
    return {
        "summary": row_of(one),
        "texts": [texts.of(token) for token in path["tokens"][shown]],
        "columns": {name: column[shown] for name, column in path.items() if name != "tokens"},
        "num_more": max(0, len(path["tokens"]) - common - MAX_TOKENS),
    }


def _path(record: EpisodeRecord, seen: EpisodeTokens | None) -> dict[str, Any]:
    """All tokens of the last turn's branch, and what is known of those that were sampled."""
    turns = record.episode.turns
    if not turns:
        return {"tokens": []}
    of_turns = columns_of(record, seen)
    size = turns[-1].num_tokens
    path: dict[str, Any] = {name: [None] * size for name in of_turns[-1]}
    path |= {"tokens": list(turns[-1].tokens), "sampled": [0] * size}
    index: int | None = len(turns) - 1
    while index is not None:
        span = slice(turns[index].num_prompt, turns[index].num_tokens)
        for name, column in of_turns[index].items():
            path[name][span] = column
        path["sampled"][span] = [1] * len(turns[index].output_tokens)
        index = turns[index].parent
    return path


def _shared(two: list[list[int]]) -> int:
    """The number of first tokens that two sequences have in common."""
    a, b = two
    size = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:size], np.int64) != np.array(b[:size], np.int64))
    return int(differ[0]) if len(differ) else size
