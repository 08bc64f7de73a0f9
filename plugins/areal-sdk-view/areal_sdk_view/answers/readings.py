"""An episode under other weights: the readings that `areal-sdk reread` (areal-sdk-fork) has added to the run's directory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from areal_sdk import ArealError, Turn
from areal_sdk.records import read_json_lines
from areal_sdk_view.answers.columns import DIGITS, aligned
from areal_sdk_view.answers.pieces import Pieces, pieces_of
from areal_sdk_view.library import NotThereError, OpenRun

JSON = dict[str, Any]

FILE = "readings.jsonl"
"""A line a reading: `episode`, `model`, and `turns` with `logprobs` and `likeliest` of each sampled token."""
SAMPLER = "as sampled"
DAMAGED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""Faults of a line that a stranger wrote."""


def readings_of(run: OpenRun, name: str, turns: Sequence[Turn]) -> list[JSON]:
    """The readings of an episode, a number for each of its tokens: that of its sampling, then the others, newest last.
    None if it was not read again."""
    if not (of_models := lines_of(run).get(name, {})):
        return []
    texts = pieces_of(run.run_dir.model)
    found = [_reading(turns, SAMPLER, [{"logprobs": turn.logprobs} for turn in turns], texts)]
    for model, of_turns in of_models.items():
        with suppress(*DAMAGED):  # or an earlier episode of this name
            found.append(_reading(turns, model, of_turns, texts))
    return found


def pair_of(readings: Sequence[JSON]) -> Sequence[int]:
    """The places of the two readings that are compared first; empty if there is one alone."""
    return [min(1, len(readings) - 2), len(readings) - 1] if len(readings) > 1 else []


def largest_changes(run: OpenRun, episodes: Iterable[str]) -> Iterator[JSON]:
    """The token of each of these episodes whose probability changed most, where an episode was read again."""
    for name in filter(lines_of(run).__contains__, episodes):
        with suppress(ArealError, NotThereError):  # `run.keep_episodes` deleted it
            turns, texts = run.episode(name).episode.turns, pieces_of(run.run_dir.model)
            readings = readings_of(run, name, turns)
            if pair := [readings[n] for n in pair_of(readings)]:
                place, before, after = _largest(*(one["logprob"] for one in pair))
                tokens = [token for turn in turns for token in turn.new_tokens + turn.output_tokens]
                found = {"token": place, "text": texts.of(tokens[place]), "before": before}
                models = {"from": pair[0]["model"], "to": pair[1]["model"]}
                yield {"id": name, "after": after, **found, **models}


def _largest(before: Sequence[float | None], after: Sequence[float]) -> tuple[int, float, float]:
    """The place of the largest change, and both values there."""
    sides = enumerate(zip(before, after, strict=True))
    known = [(n, old, new) for n, (old, new) in sides if old is not None]
    return max(known, key=lambda one: abs(one[2] - one[1]))


def lines_of(run: OpenRun) -> Mapping[str, Mapping[str, Sequence[JSON]]]:
    """The turns of the latest reading by each model, by episode."""
    for end, made in read_json_lines(run.run_dir.path / FILE, offset=run.readings_end):
        run.readings_end = end
        with suppress(*DAMAGED):
            of_episode = run.readings.setdefault(made["episode"], {})
            of_episode.pop(model := str(made["model"]), None)
            of_episode[model] = made["turns"]
    return run.readings


def _reading(turns: Sequence[Turn], model: str, read: Sequence[JSON], texts: Pieces) -> JSON:
    logprobs = [[round(float(value), DIGITS) for value in of_turn["logprobs"]] for of_turn in read]
    likeliest = [
        [[[texts.of(token), round(float(value), DIGITS)] for token, value in at] for at in said]
        for said in (one.get("likeliest", [[]] * len(one["logprobs"])) for one in read)
    ]
    columns = {"logprob": aligned(turns, logprobs), "likeliest": aligned(turns, likeliest)}
    return {"model": model, **columns}
