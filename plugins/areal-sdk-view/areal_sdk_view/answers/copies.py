"""An episode as others take it: a line of JSONL a branch, ATIF (the trajectory format of Harbor), a turn as curl."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_sdk import Episode, Turn
from areal_sdk.records import EpisodeRecord
from areal_sdk_view.library import NotThereError, OpenRun

JSON = dict[str, Any]


def copy(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """The text of the episode `id` in the form `as`: `jsonl`, `atif`, or `curl` of its turn `turn`."""
    record, settings = run.episode(query.get("id", "")), run.run_dir.read_config()
    match query.get("as"):
        case "jsonl":
            return {"text": "\n".join(_line(row) for row in rows_of(record))}
        case "atif":
            name = run.run_dir.path.resolve().name
            return {"text": atif(record, run=name, settings=settings)}
        case "curl":
            return {"text": curl(record.episode, int(query.get("turn") or 0), settings)}
        case other:
            raise ValueError(f"no form {other!r}; known: jsonl, atif, curl")


def rows_of(record: EpisodeRecord) -> Iterator[JSON]:
    """The conversation of each branch, the last turn's last: a row that `areal-sdk sft` reads."""
    episode = record.episode
    for chain in _branches(episode.turns):
        turns = [episode.turns[index] for index in chain]
        messages = [m for turn in turns for m in (*turn.new_messages, turn.message)]
        tools = turns[0].details.get("tools")
        yield {
            "messages": messages,
            **({"tools": tools} if tools else {}),
            "episode": episode.id,
            **_verdict(record),
        }


def _branches(turns: Sequence[Turn]) -> Iterator[tuple[int, ...]]:
    """The chain of turns of each answer that no other turn continues, as indices, oldest first."""
    parents = {turn.parent for turn in turns}
    for leaf in range(len(turns)):
        chain: list[int] = []
        index: int | None = None if leaf in parents else leaf
        while index is not None:
            chain.append(index)
            index = turns[index].parent
        if chain:
            yield tuple(reversed(chain))


def _verdict(record: EpisodeRecord) -> JSON:
    outcome, task = record.episode.outcome, record.episode.task
    said = {
        "reward": outcome.reward,
        "success": outcome.success,
        "error": outcome.message if outcome.error else None,
        "task": task.id,
        "group": record.episode.group or None,
        "split": record.split,
        "version": record.version,
    }
    return {name: value for name, value in said.items() if value is not None}


def curl(episode: Episode, index: int, settings: Mapping[str, Any]) -> str:
    """The request of a turn as a command for any shell, whatever the messages say.

    The body is one line of ASCII in a quoted here-document, so nothing in it is a command, and no mark hides text.
    """
    if not 0 <= index < len(episode.turns):
        raise NotThereError(f"episode {episode.id!r} has no turn {index}")
    chain = next(chain for chain in _branches(episode.turns) if index in chain)
    turns = [episode.turns[at] for at in chain if at <= index]
    turn = turns[-1]
    asked = turn.details.get("request")
    body: JSON = {
        "model": settings.get("model") or "model",
        "temperature": 0.0 if turn.excluded == "greedy" else turn.temperature,
        **(asked if isinstance(asked, Mapping) else {}),
        "messages": [
            *(m for before in turns[:-1] for m in (*before.new_messages, before.message)),
            *turn.new_messages,
        ],
    }
    if tools := turns[0].details.get("tools"):
        body["tools"] = tools
    return (
        'curl "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" '
        f"-H 'Content-Type: application/json' -d @- <<'END'\n{json.dumps(body, default=repr)}\nEND\n"
    )


def atif(record: EpisodeRecord, *, run: str, settings: Mapping[str, Any]) -> str:
    """The conversations of the episode as areal-sdk-traces writes them: a document a line, exact tokens inside."""
    try:
        from areal_sdk_traces.book import Book, Place
        from areal_sdk_traces.exporters import Source, exporter_of
    except ImportError:
        raise ValueError('areal-sdk-traces writes ATIF: pip install "areal-sdk[traces]"') from None
    episode, book = record.episode, Book()
    agent, model = (str(settings.get(name) or name) for name in ("agent", "model"))
    source = Source(run, agent, model, record.split)
    try:
        rows = [*exporter_of("atif")(episode, source, Place(episode.id, 0), book)]
    except (LookupError, TypeError, AttributeError) as exc:
        raise ValueError(f"ATIF has no place for a message of {episode.id!r}: {exc!r}") from exc
    if not rows:
        raise ValueError(f"episode {episode.id!r} is no conversation: {book.entries[0].reason}")
    return "\n".join(map(_line, rows))


def _line(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
