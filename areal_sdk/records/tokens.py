"""The tokens of one episode as the trainer saw them, by turn."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from areal_sdk.telemetry.run_dir import RunDir
from areal_sdk.telemetry.token_log import COLUMNS, StepTokens, TokenFlag
from areal_sdk.types import Episode, Turn

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TurnTokens:
    """One number for each token of `Turn.output_tokens`; NaN where the step has none."""

    flags: NDArray[np.uint8]
    """`TokenFlag`s; 0 for a token that the step did not count."""
    advantage: Floats
    logprob: Floats
    """The trainer's logprob of the token, when it computed the loss."""
    proximal: Floats
    """The logprob at the centre of the trust region."""
    reference: Floats
    ratio: Floats
    """The ratio that the trust region judged."""
    weight: Floats
    """The importance weight as it was used."""
    loss: Floats
    """The term of the loss, before the factor `EpisodeTokens.weight` and the divisor."""
    entropy: Floats
    value: Floats
    """The critic's value of the token's state."""
    target: Floats
    """The return that the critic learns."""

    @property
    def num_terms(self) -> int:
        return int((self.flags & TokenFlag.TERM > 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTokens:
    """The record of the tokens of an episode in the step that trained it."""

    step: int
    version: int
    """The version with which the step began."""
    turns: tuple[TurnTokens, ...]
    """The records of the turns, one for each turn of the episode."""
    reward: float
    """The reward as the estimator saw it, after shaping."""
    siblings: Mapping[str, float]
    """The reward, after shaping, of every episode of the group, by id."""
    weight: float
    """The factor that `aggregation` puts on every term of the episode."""
    divisor: float | None
    """The number that divides the sum of all terms of the minibatch; None if the minibatch had no term."""
    is_applied: bool
    """Whether the update with these terms was made."""
    update_share: float = 1.0
    """Share of the minibatch's update that the trust region left."""


def tokens_of(run_dir: RunDir, episode_id: str) -> EpisodeTokens | None:
    """The tokens of an episode; None if no step trained it, or if that step's file is gone."""
    record = run_dir.find_episode(episode_id)
    if record.step is None or record.is_undone:
        return None
    tokens = run_dir.read_tokens(record.step)
    return None if tokens is None else episode_tokens(record.episode, tokens, step=record.step)


def episode_tokens(episode: Episode, tokens: StepTokens, *, step: int) -> EpisodeTokens | None:
    """The tokens of `episode` in the record of a step; None if the record lacks the episode."""
    spans = tokens.spans(episode.id)
    if not spans:
        return None
    first, _ = spans[0]
    group = tokens.groups[first.group]
    minibatch = None if group.minibatch is None else tokens.minibatches[group.minibatch]
    return EpisodeTokens(
        step=step,
        version=tokens.version,
        turns=tuple(_by_turn(episode, tokens)),
        reward=first.reward,
        siblings={s.episode_id: s.reward for s in tokens.sequences if s.group == first.group},
        weight=first.weight,
        divisor=None if minibatch is None else minibatch.divisor,
        is_applied=minibatch is not None and minibatch.is_applied,
        update_share=1.0 if minibatch is None else minibatch.share,
    )


def _by_turn(episode: Episode, tokens: StepTokens) -> list[TurnTokens]:
    rows = [
        {
            name: np.zeros(len(turn.output_tokens), np.uint8)
            if name == "flags"
            else np.full(len(turn.output_tokens), np.nan, np.float32)
            for name in (*COLUMNS, "train_minus_behaviour")
        }
        for turn in episode.turns
    ]
    for sequence, span in tokens.spans(episode.id):
        start = span.start
        for turn, place, count in sequence.runs:
            first = place - episode.turns[turn].num_prompt
            for name, column in tokens.columns.items():
                rows[turn][name][first : first + count] = column[start : start + count]
            start += count
    return [_turn(turn, row) for turn, row in zip(episode.turns, rows, strict=True)]


def _turn(turn: Turn, row: Mapping[str, NDArray[np.generic]]) -> TurnTokens:
    numbers = {name: column.astype(np.float32) for name, column in row.items()}
    logprob = np.asarray(turn.logprobs, np.float32) + numbers["train_minus_behaviour"]
    with np.errstate(over="ignore", invalid="ignore"):  # a policy that diverged
        return TurnTokens(
            flags=row["flags"].astype(np.uint8),
            advantage=numbers["advantage"],
            logprob=logprob,
            proximal=logprob - numbers["train_minus_proximal"],
            reference=logprob - numbers["train_minus_reference"],
            ratio=np.exp(numbers["log_ratio"]),
            weight=np.exp(numbers["log_weight"]),
            loss=numbers["loss"],
            entropy=numbers["entropy"],
            value=numbers["value"],
            target=numbers["target"],
        )
