"""Columns of the sampled tokens: from their sampling, and from the step that trained them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_sdk import Turn
from areal_sdk.records import EpisodeRecord, EpisodeTokens, TokenFlag, TurnTokens

Columns = dict[str, list[Any]]

OF_SAMPLING = ("logprob", "version", "mask")
OF_STEP = ("advantage", "entropy", "ratio", "weight", "loss")
"""Columns of the record of the step; a run may have none."""
DIGITS = 5
_REASONS: Mapping[int, str] = {
    0: "not counted by its step",
    TokenFlag.COUNTED: "no advantage, so no term in the loss",
    TokenFlag.COUNTED | TokenFlag.TERM: "",
}


def columns_of(record: EpisodeRecord, seen: EpisodeTokens | None) -> list[Columns]:
    """The columns of the sampled tokens of each turn. Null: not known."""
    masks = _masks(record)
    found = []
    for index, turn in enumerate(record.episode.turns):
        columns: Columns = {
            "logprob": [round(value, DIGITS) for value in turn.logprobs],
            "version": list(turn.versions),
            "mask": masks[index].astype(int).tolist(),
        }
        if seen is not None:
            columns |= _of_step(seen.turns[index])
        found.append(columns)
    return found


def aligned(turns: Sequence[Turn], of_turns: Iterable[Sequence[Any]]) -> list[Any]:
    """One entry for each token of the turns, prompts once, from one for each sampled token. ValueError if those are others."""
    found: list[Any] = []
    for turn, values in zip(turns, of_turns, strict=True):
        if len(values) != len(turn.output_tokens):
            raise ValueError(f"{len(values)} entries for {len(turn.output_tokens)} tokens")
        found += [None] * len(turn.new_tokens) + list(values)
    return found


def _of_step(tokens: TurnTokens) -> Columns:
    numbers = {name: getattr(tokens, name).astype(np.float64).round(DIGITS) for name in OF_STEP}
    columns: Columns = {
        name: [value if np.isfinite(value) else None for value in column.tolist()]
        for name, column in numbers.items()
    }
    columns["why"] = [_reason(flags) for flags in tokens.flags.tolist()]
    return columns


def _reason(flags: int) -> str:
    """The reason why a term did not act as it was: `clipped low`."""
    known = _REASONS.get(flags)
    if known is not None:
        return known
    others = TokenFlag(flags & ~(TokenFlag.COUNTED | TokenFlag.TERM))
    return ", ".join(str(flag.name).lower().replace("_", " ") for flag in others)


def _masks(record: EpisodeRecord) -> list[NDArray[np.bool_]]:
    """The masks of the output tokens that a trajectory trains, one for each turn."""
    turns = record.episode.turns
    masks = [np.zeros(len(turn.output_tokens), np.bool_) for turn in turns]
    for trajectory in record.trajectories:
        for index in np.unique(trajectory.turn_of_token[trajectory.loss_mask]).tolist():
            places = np.flatnonzero(trajectory.loss_mask & (trajectory.turn_of_token == index))
            masks[index][places + trajectory.branch.num_before - turns[index].num_prompt] = True
    return masks
