"""An episode for others to take: a line of JSONL a branch, a document of ATIF a branch, the request of a turn as curl."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_sdk import ConfigError, Episode, Turn
from areal_sdk.records import EpisodeRecord
from areal_sdk_traces.book import Book, Place
from areal_sdk_traces.exporters import Source, exporter_of

JSON = dict[str, Any]


def copy_of(
    record: EpisodeRecord, form: str, *, run: str, settings: Mapping[str, Any], turn: int = 0
) -> str:
    """The episode as `jsonl` or `atif`, or its turn `turn` as `curl`. `settings`: those of its run."""
    match form:
        case "jsonl":
            return as_jsonl(record)
        case "atif":
            return as_atif(record, run=run, settings=settings)
        case "curl":
            return as_curl(record.episode, turn, settings)
        case _:
            raise ConfigError(f"no form {form!r}; known: jsonl, atif, curl")


def as_jsonl(record: EpisodeRecord) -> str:
    """The conversation of each branch with the verdict, as `areal-sdk sft` reads it. The last turn's branch is last."""
    return "\n".join(map(_line, _rows(record)))


def _rows(record: EpisodeRecord) -> Iterator[JSON]:
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


def as_curl(episode: Episode, index: int, settings: Mapping[str, Any]) -> str:
    """The request of a turn as a command for any shell, whatever the messages say.

    The body is one line of ASCII in a quoted here-document, so nothing in it is a command, and no mark hides text.
    """
    if not 0 <= index < len(episode.turns):
        raise ConfigError(f"episode {episode.id!r} has no turn {index}")
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


def as_atif(record: EpisodeRecord, *, run: str, settings: Mapping[str, Any]) -> str:
    """A document for each branch, exact tokens inside. ConfigError if a message has no place in the format."""
    episode, book = record.episode, Book()
    agent, model = (str(settings.get(name) or name) for name in ("agent", "model"))
    source = Source(run, agent, model, record.split)
    try:
        rows = [*exporter_of("atif")(episode, source, Place(episode.id, 0), book)]
    except (LookupError, TypeError, AttributeError) as exc:
        raise ConfigError(f"ATIF has no place for a message of {episode.id!r}: {exc!r}") from exc
    if not rows:
        raise ConfigError(f"episode {episode.id!r} is no conversation: {book.entries[0].reason}")
    return "\n".join(map(_line, rows))


def _line(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
