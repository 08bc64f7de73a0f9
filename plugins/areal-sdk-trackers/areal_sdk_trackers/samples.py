"""Sample episodes: a few of many, each as likely as the others, as rows of text."""

import random
from typing import Any

from areal_sdk import Episode

MAX_TEXT = 8000
"""Maximum number of characters of a conversation in a row. A longer one loses its middle."""

COLUMNS = ("episode", "task", "source", "reward", "success", "turns", "dropped", "text")

Row = dict[str, Any]


class Samples:
    """A random sample of the episodes that were added: at most `size`, each as likely as the others.

    The first episodes would be the shortest, because the shortest end first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._num_added = 0
        self._kept: list[tuple[Episode, str]] = []
        self._random = random.Random(0)

    def add(self, episode: Episode, dropped: str) -> None:
        self._num_added += 1
        if len(self._kept) < self._size:
            self._kept.append((episode, dropped))
        elif (place := self._random.randrange(self._num_added)) < self._size:
            self._kept[place] = (episode, dropped)

    def rows(self) -> list[Row]:
        return [row_of(episode, dropped) for episode, dropped in self._kept]


def row_of(episode: Episode, dropped: str) -> Row:
    values = (
        episode.id,
        episode.task.id,
        episode.task.source,
        episode.reward,
        episode.outcome.success,
        len(episode.turns),
        dropped,
        conversation(episode),
    )
    return dict(zip(COLUMNS, values, strict=True))


def conversation(episode: Episode) -> str:
    """The messages as text, with tool calls; the error after them, if the episode has one."""
    parts = []
    for message in episode.messages:
        calls = [
            f"{call['function']['name']}({call['function']['arguments']})"
            for call in message.get("tool_calls") or ()
        ]
        said = " ".join(str(part) for part in (message.get("content") or "", *calls) if part)
        parts.append(f"{message['role']}: {said}")
    if episode.outcome.error is not None:
        parts.append(f"[{episode.outcome.error} error: {episode.outcome.message}]")
    text = "\n".join(parts)
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
