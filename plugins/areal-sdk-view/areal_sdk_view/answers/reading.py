"""One episode: its facts, its conversation, the numbers of its turns, and all of its tokens."""

import shlex
from collections.abc import Mapping
from typing import Any

from areal_sdk.records import EpisodeRecord
from areal_sdk_traces.copies import copy_of
from areal_sdk_view.answers.columns import OF_SAMPLING, OF_STEP, aligned, columns_of
from areal_sdk_view.answers.episodes import row_of
from areal_sdk_view.answers.messages import conversation, cut, text_of
from areal_sdk_view.answers.pieces import pieces_of
from areal_sdk_view.answers.readings import pair_of, readings_of
from areal_sdk_view.library import NotThereError, OpenRun

JSON = dict[str, Any]

TEXT_PART = 200_000
"""Characters of a long text in one answer."""
_OF_TURN = (
    *("num_prompt", "num_cached", "finish_reason", "parent", "fork", "excluded"),
    *("began_s", "queued_s", "first_token_s", "duration_s"),
)
_OF_OUTCOME = ("kind", "reward", "turn_rewards", "success", "error")


def read(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """The episode `id`: facts, siblings, conversation and turns; texts cut."""
    record = run.episode(query.get("id", ""))
    episode, summary = record.episode, run.find(query["id"])
    assert summary is not None
    messages, outcome = conversation(episode), episode.outcome
    return {
        "summary": row_of(summary),
        "task": {"id": episode.task.id, "data": cut({"text": text_of(dict(episode.task.data))})},
        "outcome": {name: getattr(outcome, name) for name in _OF_OUTCOME}
        | {
            "metrics": dict(outcome.metrics),
            "message": outcome.message[:TEXT_PART],
            "trace": outcome.trace[:TEXT_PART],
        },
        "truncated": episode.truncated,
        "attempt": episode.attempt,
        "siblings": [
            {"id": one.id, "reward": one.reward, "advantage": one.advantage, "dropped": one.dropped}
            for one in (run.of("group", summary.group) if summary.group else ())
        ],
        "messages": [{**message, "blocks": [*map(cut, message["blocks"])]} for message in messages],
        "turns": [_turn(record, index) for index in range(len(episode.turns))],
    }


def read_text(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """A part of a long text: block `block` of message `message`, from character `start` on."""
    messages = conversation(run.episode(query.get("id", "")).episode)
    message, block = int(query.get("message", "")), int(query.get("block", ""))
    try:
        text = messages[message]["blocks"][block]["text"]
    except LookupError:
        raise NotThereError(f"message {message} has no text {block}") from None
    start = int(query.get("start") or 0)
    return {"text": text[start : start + TEXT_PART], "length": len(text)}


def copy(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """The text of the episode `id` in the form `as`, and of its turn `turn` where the form is one of turns."""
    record, turn = run.episode(query.get("id", "")), int(query.get("turn") or 0)
    if turn and not 0 <= turn < len(record.episode.turns):
        raise NotThereError(f"episode {record.episode.id!r} has no turn {turn}")
    name, settings = run.run_dir.path.resolve().name, run.run_dir.read_config()
    return {"text": copy_of(record, query.get("as", ""), run=name, settings=settings, turn=turn)}


def read_tokens(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """Every token of the episode once, as columns, and the segments of its turns."""
    record = run.episode(query.get("id", ""))
    (seen, problem), turns = run.seen(record), record.episode.turns
    of_turns = columns_of(record, seen)
    names = (*OF_SAMPLING, *((*OF_STEP, "why") if seen is not None else ()))
    columns = {name: aligned(turns, [of_turn[name] for of_turn in of_turns]) for name in names}
    columns["sampled"] = [int(one is not None) for one in columns["version"]]
    segments, tokens = [], list[int]()
    for index, turn in enumerate(turns):
        for is_output, part in ((False, turn.new_tokens), (True, turn.output_tokens)):
            place = {"first": len(tokens), "length": len(part)}
            segments.append({"turn": index, "is_output": is_output, **place})
            tokens += part
    texts, places = pieces_of(run.run_dir.model).table(tokens)
    readings = readings_of(run, record.episode.id, turns)
    reread = ("areal-sdk", "reread", str(run.run_dir.path), record.episode.id)
    return {
        "segments": segments,
        "texts": texts,
        "text_of": places,
        "ids": tokens,
        "problem": problem,
        "columns": columns,
        "readings": readings,
        "pair": pair_of(readings),
        "reread": shlex.join(reread),
    }


def _turn(record: EpisodeRecord, index: int) -> JSON:
    turn = record.episode.turns[index]
    credit = record.credit.by_turn if record.credit is not None else ()
    rewards = record.episode.outcome.turn_rewards
    return {name: getattr(turn, name) for name in _OF_TURN} | {
        "num_output": len(turn.output_tokens),
        "advantage": credit[index] if index < len(credit) else None,
        "reward": rewards[index] if index < len(rewards) else None,
    }
