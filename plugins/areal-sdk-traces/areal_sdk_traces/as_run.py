"""Conversations of other tools as a run's directory, for tools that read runs, such as the viewer.

A trace is an episode of text, its score the reward. Attempts at one task are those that the source says belong
together, else those that begin with the same prompt.
"""

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from areal_sdk import ConfigError, Episode, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun
from areal_sdk.types import ForkReason
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.conversation import WEIGHT, Conversation, Relation, canonical, meaning
from areal_sdk_traces.readers import reader_of
from areal_sdk_traces.rows import Row, read_rows

SNIFFED = ("inspect", "atif", "verifiers", "langfuse", "langsmith", "claude-code", "codex")
SNIFFED_LAST = ("openinference", "otel", "openai")
"""The formats, in the order in which they are tried: those that take least from others come first."""
NUM_SNIFFED = 20
"""Number of rows from which the format is found."""
REASONS: Mapping[Relation, ForkReason] = {
    Relation.SUBAGENT: ForkReason.SUBAGENT,
    Relation.COMPACTION: ForkReason.COMPACTION,
}


def write_run(source: Path, directory: Path, *, say: Callable[[str], object]) -> Path:
    """Write what `source` holds as a run below `directory`; returns its path. ConfigError if it holds no conversation.

    `say` is told the reason for each row that is in no episode.
    """
    rows = list(read_rows(str(source), book := Book(), stdin=io.BytesIO()))
    format = format_of(rows)
    found = list(reader_of(format)(rows, book)) if format else []
    if not found:
        why = next((f": {entry}" for entry in book.entries), "")
        raise ConfigError(f"no conversation in {source} that areal-sdk-traces reads{why}")
    by_trace: dict[str, list[Conversation]] = defaultdict(list)
    for one in found:
        by_trace[one.trace or one.id].append(one)
    agent = next((tag for one in found for tag in one.tags), source.stem)
    model = next((one.model for one in found if one.model), "")
    run = RecordedRun(directory / source.stem, settings={"agent": agent, "model": model})
    attempts: dict[str, int] = defaultdict(int)
    for trace, of_trace in by_trace.items():
        task = of_trace[0].task or _prompt_digest(of_trace[0])
        episode = episode_of(trace, task, of_trace, sibling=attempts[task])
        attempts[task] += 1
        run.measure(episode)
    run.event("end", {"ended": "read", "steps": 0, "version": 0})
    run.close()
    for entry in book.of(Fate.DAMAGED)[:NUM_SNIFFED]:
        say(f"left out: {entry}")
    return run.path


def format_of(rows: Iterable[Row]) -> str:
    """The first format with the most conversations in the first rows; empty if none reads any."""
    first = list(islice(rows, NUM_SNIFFED))
    num = {
        format: sum(1 for _ in reader_of(format)(first, Book()))
        for format in (*SNIFFED, *SNIFFED_LAST)
    }
    best = max(num, key=lambda format: num[format])
    return best if num[best] else ""


def episode_of(name: str, task: str, found: Iterable[Conversation], *, sibling: int = 0) -> Episode:
    """The conversations of a trace as an episode of text."""
    turns: list[Turn] = []
    ends: dict[tuple[str, int], int] = {}
    scores: dict[str, float] = {}
    for one in found:
        scores |= one.scores
        _add_turns(one, turns, ends)
    known = {value for one in found if (value := one.score) is not None}
    outcome = (
        Outcome.scored(known.pop(), metrics=scores)
        if len(known) == 1
        else Outcome.abstained("several scores" if known or scores else "no score")
    )
    told = Task(task, {"source": ", ".join(map(str, _places(found)))})
    return Episode(name, told, tuple(turns), outcome, group=task, sibling=sibling)


def _places(found: Iterable[Conversation]) -> Sequence[object]:
    return list(dict.fromkeys(place for one in found for place in one.places))[:NUM_SNIFFED]


def _add_turns(one: Conversation, turns: list[Turn], ends: dict[tuple[str, int], int]) -> None:
    """A turn for each answer that no earlier conversation of the trace has."""
    parent, start, fork = None, 0, None
    if one.link is not None:
        fork = REASONS.get(one.link.relation, ForkReason.EDITED)
        for index in range(one.link.num_shared):
            if (at := ends.get((one.link.parent, index))) is not None:
                ends[one.id, index] = parent = at
                start = index + 1
    for index, message in enumerate(one.messages[start:], start):
        if message["role"] != "assistant":
            continue
        plain = {key: value for key, value in message.items() if key != WEIGHT}
        asked = tuple(one.messages[start:index])
        details = {"tools": list(one.tools)} if one.tools and parent is None else {}
        turns.append(Turn((), (), (), (), plain, asked, parent=parent, fork=fork, details=details))
        ends[one.id, index] = parent = len(turns) - 1
        start, fork = index + 1, None


def _prompt_digest(one: Conversation) -> str:
    """A name for the task of an attempt: the same for the same prompt."""
    said = [meaning(message) for message in one.messages[: one.num_prompt]]
    return hashlib.blake2b(canonical(said), digest_size=4).hexdigest()
