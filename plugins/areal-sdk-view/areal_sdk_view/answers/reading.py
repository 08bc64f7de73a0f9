"""One episode: its facts, its conversation, the numbers of its turns, and all of its tokens."""

from collections.abc import Mapping
from typing import Any

import orjson

from areal_sdk import Episode
from areal_sdk.records import EpisodeRecord, EpisodeTokens
from areal_sdk_view.answers.columns import OF_SAMPLING, OF_STEP, columns_of
from areal_sdk_view.answers.episodes import row_of
from areal_sdk_view.answers.messages import conversation, cut
from areal_sdk_view.answers.pieces import pieces_of
from areal_sdk_view.library import NotThereError, OpenRun

JSON = dict[str, Any]

TEXT_PART = 200_000
"""Characters of a long text in one answer."""


def read(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """The episode `id`: facts, siblings, conversation and turns; texts cut."""
    record = _record(run, query)
    episode, summary = record.episode, run.find(query["id"])
    assert summary is not None
    messages = conversation(episode)
    return {
        "summary": row_of(summary),
        "task": {"id": episode.task.id, "data": cut({"text": _json(episode.task.data)})},
        "outcome": {
            "kind": episode.outcome.kind,
            "reward": episode.outcome.reward,
            "turn_rewards": episode.outcome.turn_rewards,
            "success": episode.outcome.success,
            "metrics": dict(episode.outcome.metrics),
            "error": episode.outcome.error,
            "message": episode.outcome.message[:TEXT_PART],
            "trace": episode.outcome.trace[:TEXT_PART],
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
    messages = conversation(_record(run, query).episode)
    message, block = int(query.get("message", "")), int(query.get("block", ""))
    try:
        text = messages[message]["blocks"][block]["text"]
    except LookupError:
        raise NotThereError(f"message {message} has no text {block}") from None
    start = int(query.get("start") or 0)
    return {"text": text[start : start + TEXT_PART], "length": len(text)}


def read_tokens(run: OpenRun, query: Mapping[str, str]) -> JSON:
    """Every token of the episode once, as columns, and the segments of its turns.

    Where a prompt begins like an earlier turn, the segment holds the rest: `start` is the place in the whole.
    """
    record = _record(run, query)
    seen = run.tokens(record)
    of_turns = columns_of(record, seen)
    names = ("sampled", *OF_SAMPLING, *((*OF_STEP, "why") if seen is not None else ()))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    tokens: list[int] = []
    segments = []
    for index, turn in enumerate(record.episode.turns):
        for is_output, part in ((False, turn.new_tokens), (True, turn.output_tokens)):
            segments.append(
                {"turn": index, "is_output": is_output, "first": len(tokens), "length": len(part)}
            )
            tokens += part
            columns["sampled"] += [int(is_output)] * len(part)
            for name in names[1:]:
                columns[name] += of_turns[index][name] if is_output else [None] * len(part)
    texts, places = pieces_of(run.run_dir.model).table(tokens)
    return {
        "segments": segments,
        "texts": texts,
        "text_of": places,
        "ids": tokens,
        "columns": columns,
        "step": None if seen is None else _step(seen),
    }


def _step(seen: EpisodeTokens) -> JSON:
    """The record of the step about the whole episode."""
    return {
        "step": seen.step,
        "reward": seen.reward,
        "weight": seen.weight,
        "divisor": seen.divisor,
        "is_applied": seen.is_applied,
        "update_share": seen.update_share,
    }


def _record(run: OpenRun, query: Mapping[str, str]) -> EpisodeRecord:
    summary = run.find(query.get("id", ""))
    if summary is None:
        raise NotThereError(f"no episode {query.get('id')!r} in this run")
    return run.record(summary)


def _turn(record: EpisodeRecord, index: int) -> JSON:
    turn = record.episode.turns[index]
    credit = record.credit.by_turn if record.credit is not None else ()
    rewards = record.episode.outcome.turn_rewards
    return {
        "num_prompt": turn.num_prompt,
        "num_new": len(turn.new_tokens),
        "num_cached": turn.num_cached,
        "num_output": len(turn.output_tokens),
        "temperature": turn.temperature,
        "finish_reason": turn.finish_reason,
        "parent": turn.parent,
        "fork": turn.fork,
        "excluded": turn.excluded,
        "versions": [min(turn.versions), max(turn.versions)] if turn.versions else [],
        "began_s": turn.began_s,
        "first_token_s": turn.first_token_s,
        "duration_s": turn.duration_s,
        "advantage": credit[index] if index < len(credit) else None,
        "reward": rewards[index] if index < len(rewards) else None,
        "surprise": _mean_surprise(record.episode, index),
    }


def _mean_surprise(episode: Episode, index: int) -> float | None:
    """Mean of -logprob of the sampled tokens."""
    logprobs = episode.turns[index].logprobs
    return -sum(logprobs) / len(logprobs) if logprobs else None


def _json(data: Mapping[str, Any]) -> str:
    return orjson.dumps(
        dict(data), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=repr
    ).decode()
