"""The ending of an episode as a few texts, without what differs by chance: failures of one kind have the same."""

import re
from collections.abc import Mapping, Sequence

from areal_sdk import ArealError, Episode
from areal_sdk.records import EpisodeSummary, FollowedRun
from areal_sdk_view.answers.messages import calls_of

Ending = tuple[str, ...]
"""One text a field of `FIELDS`; empty where the episode has none."""

FIELDS: Mapping[str, float] = {
    "error": 3.0,
    "tool error": 2.0,
    "last calls": 2.0,
    "finish": 1.0,
    "last answer": 1.0,
}
"""The fields, and how much each counts when two endings are compared."""
NUM_CALLS = 3
NO_TEXT = "(no text)"
MAX_LENGTH = 240
"""Maximum number of characters of a field."""
MAX_RAW = 20_000
"""Number of characters at the end of a tool's answer in which an error is looked for."""
_BY_CHANCE = re.compile(
    r"(?P<said>'[^']{0,200}'|\"[^\"]{0,200}\"|(?:/[\w.\-]+){2,})|0x[0-9a-f]+|\d+(?:\.\d+)?"
)
"""Quotes and paths, and numbers."""
_ERROR = re.compile(
    r"error|exception|traceback|failed|failure|invalid|denied|refused|not found|timed out",
    re.IGNORECASE,
)
"""A word of the line of a tool's answer that says what went wrong."""


def endings_of(
    run: FollowedRun, episodes: Sequence[EpisodeSummary], known: dict[tuple[str, int], Ending]
) -> list[Ending]:
    """The ending of each episode. Reads the episodes that are not `known`, and adds them there."""
    found = []
    for one in episodes:
        place = one.file, one.offset
        if place not in known:
            known[place] = _read(run, one)
        found.append(known[place])
    return found


def _read(run: FollowedRun, one: EpisodeSummary) -> Ending:
    try:
        episode = run.record(one).episode
    except ArealError:  # deleted or damaged: the index has its error and its last answer
        return (normalised(one.error or ""), "", "", "", normalised(one.text))
    error = normalised(one.error or "")
    answer = "" if error else normalised(one.text) or NO_TEXT
    return (error, normalised(_tool_error(episode)), _last_calls(episode), _finish(episode), answer)


def _tool_error(episode: Episode) -> str:
    """The last tool's answer that tells of an error: its line with the error, the last one of a traceback."""
    for turn in reversed(episode.turns):
        for message in reversed(turn.new_messages):
            if message.get("role") != "tool":
                continue
            lines = str(message.get("content") or "")[-MAX_RAW:].splitlines()
            if found := [line for line in lines if _ERROR.search(line)]:
                return found[-1]
    return ""


def _last_calls(episode: Episode) -> str:
    calls = (function for turn in episode.turns for function in calls_of(turn.message))
    names = [str(function.get("name", "?")) for function in calls]
    return " → ".join(names[-NUM_CALLS:])


def _finish(episode: Episode) -> str:
    if not episode.turns:
        return "no call of the model"
    reason = str(episode.turns[-1].finish_reason)
    limit = ["a limit of the run"] if episode.truncated else []
    return ", ".join([*([reason] if reason != "stop" else []), *limit])


def normalised(text: str) -> str:
    """`text` without numbers, quotes and paths: what is left names the kind of a failure.

    >>> normalised("KeyError: 'alpha7' in /tmp/run/agent.py line 31")
    'KeyError: … in … line #'
    """
    short = _BY_CHANCE.sub(lambda found: "…" if found["said"] else "#", text[: 4 * MAX_LENGTH])
    return " ".join(short.split())[:MAX_LENGTH]
