"""Scores and comments that users give to recorded sessions, as lines of a file beside the records.

A record is written once and never changed, and people rate what they read hours later. So a line of `feedback.jsonl` names
a session, and readers of the run join the two.
"""

import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal_sdk.records import append_json_line, read_json_lines

FILE = "feedback.jsonl"
MOST_SCORES = 32
LONGEST_COMMENT = 4_000
"""Maximum length of a comment in characters."""
RESERVED = ("reward", "score")
"""Names of verdicts that are trained: they are posted while the session is open."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@dataclass(slots=True)
class Feedback:
    """Everything that was said about one session."""

    scores: dict[str, float] = field(default_factory=dict)
    """The latest score of each name."""
    turn_scores: dict[int, dict[str, float]] = field(default_factory=dict)
    """The latest score of each name, by turn, for turns with scores of their own."""
    comments: list[str] = field(default_factory=list)

    def add(self, line: Mapping[str, Any]) -> None:
        turn = line.get("turn")
        scores = self.scores if turn is None else self.turn_scores.setdefault(turn, {})
        scores.update(line.get("scores") or {})
        if comment := line.get("comment"):
            self.comments.append(comment)

    def to_json(self) -> dict[str, Any]:
        turns = {str(turn): {**scores} for turn, scores in sorted(self.turn_scores.items())}
        return {"scores": {**self.scores}, "turn_scores": turns, "comments": [*self.comments]}


def checked(body: Any, *, num_turns: int) -> dict[str, Any]:
    """The fields of a line, from the body of a request. ValueError names the field and the cure."""
    if not isinstance(body, dict) or not body.keys() <= {"scores", "comment", "turn"}:
        raise ValueError(
            'send {"scores": {"helpful": 1}, "comment": "..."}, with "turn" for one turn'
        )
    scores, comment, turn = body.get("scores") or {}, body.get("comment") or "", body.get("turn")
    if not isinstance(scores, dict) or len(scores) > MOST_SCORES:
        raise ValueError(f"scores are up to {MOST_SCORES} numbers by name")
    for name, score in scores.items():
        if name in RESERVED or not _NAME.fullmatch(name):
            raise ValueError(
                f"scores: {name[:80]!r} names no score: use a letter, then letters, digits, '_', '.' and '-', up to "
                "64; a reward that is trained goes to POST /v1/reward"
            )
        if isinstance(score, bool) or not isinstance(score, (int, float)):
            raise ValueError(f"scores.{name} must be a number")
        if not math.isfinite(score):
            raise ValueError(f"scores.{name} must be finite")
    if not isinstance(comment, str) or len(comment) > LONGEST_COMMENT:
        raise ValueError(f"comment is a text of up to {LONGEST_COMMENT} characters")
    if turn is not None and (type(turn) is not int or not 0 <= turn < num_turns):
        raise ValueError(f"turn must be the index of one of the session's {num_turns} turns")
    if not scores and not comment.strip():
        raise ValueError("give scores, a comment, or both")
    line = {"scores": {name: float(v) for name, v in scores.items()}, "comment": comment}
    return {name: value for name, value in line.items() if value} | (
        {} if turn is None else {"turn": turn}
    )


def append(run: Path, *, session: str, by: str, said: Mapping[str, Any]) -> None:
    """Write one line. Several processes may write at once."""
    append_json_line(run / FILE, {"time": time.time(), "session": session, "by": by, **said})


class FollowedFeedback:
    """The feedback on a run's sessions, by the session's id; sessions without feedback are left out."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self._end = 0
        self._by_session: dict[str, Feedback] = {}

    def read_on(self) -> Mapping[str, Feedback]:
        """The feedback, with what was said since the last call. A line that a stranger wrote says nothing."""
        for end, line in read_json_lines(self._path, offset=self._end):
            self._end = end
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                self._by_session.setdefault(line["session"], Feedback()).add(line)
        return self._by_session


def read_feedback(run: Path) -> Mapping[str, Feedback]:
    return FollowedFeedback(run).read_on()
