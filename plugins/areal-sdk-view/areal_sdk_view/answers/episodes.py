"""The table of episodes: conditions, orders, full-text search, and one line a row."""

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import orjson

from areal_sdk import ArealError
from areal_sdk.records import EpisodeSummary, parse_condition
from areal_sdk_view.answers.failures import members_of
from areal_sdk_view.answers.messages import plain, said, text_of
from areal_sdk_view.library import OpenRun

MAX_ROWS = 500
SEARCH_S = 0.4
"""Longest time of one search; the page asks for the rest with `scanned`."""
_HIDDEN = ("file", "offset", "length", "turn_advantages")

ORDERS: Mapping[str, Callable[[EpisodeSummary], float | None]] = {
    "best": lambda one: None if one.reward is None else -one.reward,
    "worst": lambda one: one.reward,
    "surprising": lambda one: None if one.advantage is None else -abs(one.advantage),
    "longest": lambda one: -one.num_tokens,
    "slowest": lambda one: -one.duration_s,
}
"""The value by which an order sorts, smallest first. Episodes without the value are left out. `newest` needs none."""


def row_of(one: EpisodeSummary) -> dict[str, Any]:
    return {name: value for name, value in one._asdict().items() if name not in _HIDDEN}


def select(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """`where`, `group`, `task`, `failure`, `text`: what rows must be. `order`, `offset`, `limit`: which of them come.

    A search by `text` reads whole episodes, newest first and for a moment: the answer says how many it has
    `scanned`, and the next request goes on there.
    """
    found = _admitted(run, query)
    offset, limit = int(query.get("offset") or 0), min(int(query.get("limit") or 100), MAX_ROWS)
    order = query.get("order") or "newest"
    if order != "newest":
        key = ORDERS.get(order)
        if key is None:
            raise ValueError(f"no order {order!r}; known: newest, {', '.join(ORDERS)}")
        found = ranked(found, key)
    answer: dict[str, Any] = {"total": len(run.episodes), "found": len(found), "scanned": None}
    if text := query.get("text"):
        start = int(query.get("scanned") or 0)
        rows, scanned = _search(run, found, text, start=start, limit=limit)
        return {**answer, "scanned": scanned, "rows": [row_of(one) for one in rows]}
    return {**answer, "rows": [row_of(one) for one in found[offset : offset + limit]]}


def ranked(
    found: Sequence[EpisodeSummary], key: Callable[[EpisodeSummary], float | None]
) -> list[EpisodeSummary]:
    """The episodes that have the value, smallest first; in their order where it is the same."""
    valued = [(value, one) for one in found if (value := key(one)) is not None]
    return [one for _, one in sorted(valued, key=itemgetter(0))]


def _admitted(run: OpenRun, query: Mapping[str, str]) -> list[EpisodeSummary]:
    """The episodes that the query leaves, newest first."""
    group, task = query.get("group"), query.get("task")
    among = run.of("group", group) if group else run.of("task_id", task) if task else run.episodes
    found = among[::-1]
    if group and task:
        found = [one for one in found if one.task_id == task]
    if failure := query.get("failure"):
        members = members_of(run, failure)
        found = [one for one in found if one.id in members]
    if where := query.get("where"):
        found = [*filter(parse_condition(where), found)]
    return found


def _search(
    run: OpenRun, among: list[EpisodeSummary], text: str, *, start: int, limit: int
) -> tuple[list[EpisodeSummary], int]:
    """The next episodes that hold `text`, and the number of those that were looked at so far."""
    rows: list[EpisodeSummary] = []
    until = time.monotonic() + SEARCH_S
    needle = text.lower()
    phrase, words = plain(needle), [orjson.dumps(word)[1:-1] for word in needle.split()]
    for place in range(start, len(among)):
        try:
            if _says(run, among[place], phrase, words):
                rows.append(among[place])
        except ArealError:
            pass  # `run.keep_episodes` deleted it while this search ran
        if len(rows) == limit or time.monotonic() > until:
            return rows, place + 1
    return rows, len(among)


def _says(run: OpenRun, one: EpisodeSummary, phrase: str, words: Sequence[bytes]) -> bool:
    """Whether a text of the episode, its task or an id holds `phrase`. The record has other words, as names of fields."""
    raw = run.text(one)
    record = raw.lower() if phrase.isascii() else raw.decode(errors="replace").lower().encode()
    if not all(word in record for word in words):
        return False
    episode = run.record(one).episode
    of_task = (episode.id, episode.task.id, text_of(dict(episode.task.data)))
    texts = (*map(plain, of_task), *(text for _, text in said(episode)))
    return any(phrase in text.lower() for text in texts)
