"""Readings: how likely the tokens of a recorded episode are under other weights.

`readings.jsonl` in the run's directory keeps them, a line for each episode and model. The viewer draws them.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import areal_sdk
from areal_sdk import ConfigError, EngineError, Episode, Run
from areal_sdk.records import append_json_line, list_weights
from areal_sdk_fork.read_engine import Rereader, turns_with_tokens

FILE = "readings.jsonl"
LAST = ("final", "best")
"""Exports that stand for the end of a run, in the order of preference."""


@dataclass(frozen=True, slots=True)
class TurnReading:
    """One entry for each token that the turn sampled."""

    logprobs: tuple[float, ...]
    likeliest: tuple[tuple[tuple[int, float], ...], ...]
    """The likeliest tokens at each place, with their logprobs."""


@dataclass(frozen=True, slots=True)
class Reading:
    episode: str
    model: str
    """Name of a checkpoint of the run, or the model as it was given."""
    time: float
    turns: tuple[TurnReading, ...]
    """One for each turn of the episode. Empty ones belong to turns without tokens."""


@dataclass(frozen=True, slots=True)
class Change:
    """A sampled token, and its logprob under two models."""

    turn: int
    place: int
    token: int
    before: float
    after: float


def reread(
    run: Run,
    episode_id: str,
    models: Sequence[str] = (),
    *,
    engine: str = "local",
    quiet: bool = False,
) -> list[Reading]:
    """Read the episode under each model, and add the readings to the run's directory. Without `models` they are the
    run's first and last weights."""
    episode = run.episode(episode_id)
    if not turns_with_tokens(episode):
        raise ConfigError(f"{episode_id} has no tokens: another provider answered, and gave text")
    found = []
    for model in models or ends_of(run):
        turns = _read(run, episode, _place(run, model), engine=engine, quiet=quiet)
        reading = Reading(episode.id, _name(model), time.time(), turns)
        append_json_line(run.path / FILE, reading)
        found.append(reading)
    return found


def ends_of(run: Run) -> tuple[str, str]:
    """The model that the run began with, and its last weights."""
    names = [part.path.name for part in list_weights(run.path)]
    last = next((name for name in (*LAST, *reversed(names)) if name in names), None)
    if last is None:
        raise ConfigError(f"{run.path} has no weights yet: name the models with --model")
    return str(run.settings["model"]), last


def as_sampled(episode: Episode) -> Reading:
    """The reading by the weights that sampled the episode, which its record has."""
    turns = tuple(TurnReading(turn.logprobs, ()) for turn in episode.turns)
    return Reading(episode.id, "the sampler", 0.0, turns)


def changes(episode: Episode, before: Reading, after: Reading) -> list[Change]:
    """The sampled tokens, those first whose probability changed most."""
    found = [
        Change(index, place, token, *values)
        for index, turn in enumerate(episode.turns)
        for place, (token, *values) in enumerate(
            zip(
                turn.output_tokens,
                before.turns[index].logprobs,
                after.turns[index].logprobs,
                strict=True,
            )
        )
    ]
    return sorted(found, key=lambda one: -abs(one.after - one.before))


def _read(
    run: Run, episode: Episode, model: str, *, engine: str, quiet: bool
) -> tuple[TurnReading, ...]:
    recorded: Mapping[str, Any] = run.settings
    with tempfile.TemporaryDirectory(prefix="areal-sdk-reread-") as scratch:
        output = Path(scratch) / "turns.jsonl"
        options = {
            "run": str(run.path.resolve()),
            "episode": episode.id,
            "output": str(output),
            "engine": engine,
            "options": recorded.get("options", {}).get(f"engine.{engine}", {}),
        }
        report = areal_sdk.evaluate(
            Rereader,
            model=model,
            tasks=[areal_sdk.Task(episode.id, {"run": options["run"], "episode": episode.id})],
            record=True,
            quiet=quiet,
            eval={"samples": 1},
            engine={**recorded["engine"], "name": "reread"},
            options={"engine.reread": options},
            # The engine answers each turn once.
            rollout={"infra_retries": 0, "episode_timeout_s": 86400, "request_timeout_s": 86400},
            run={"dir": scratch},
        )
        if report.errors:
            kept = Run(report.run_dir)
            raise EngineError(kept.episode(kept.episodes()[0]["id"]).outcome.message)
        lines = iter(map(orjson.loads, output.read_bytes().splitlines()))
    return tuple(_turns(episode, lines))


def _turns(episode: Episode, lines: Iterator[Mapping[str, Any]]) -> Iterator[TurnReading]:
    for turn in episode.turns:
        line = next(lines) if turn.output_tokens else {"logprobs": (), "likeliest": ()}
        likeliest = tuple(tuple((token, value) for token, value in at) for at in line["likeliest"])
        yield TurnReading(tuple(line["logprobs"]), likeliest)


def _place(run: Run, model: str) -> str:
    """The weights: those of a checkpoint of the run, if `model` is the name of one."""
    by_name = {part.path.name: part.path for part in list_weights(run.path)}
    return str(by_name[model].resolve()) if model in by_name else model


def _name(model: str) -> str:
    return Path(model).name
