"""The receipt of one sampled token: from the weights that sampled it to its part in the loss of a step.

A receipt is read from the episode and from the record of the step that trained it. It repeats no computation of the trainer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev

import numpy as np

from areal_sdk.errors import ConfigError
from areal_sdk.records.tokens import EpisodeTokens, TurnTokens, episode_tokens
from areal_sdk.telemetry.episode_log import LEARNT, EpisodeRecord
from areal_sdk.telemetry.run_dir import RunDir
from areal_sdk.telemetry.token_log import TokenFlag
from areal_sdk.types import Episode, Turn


@dataclass(frozen=True, slots=True)
class Siblings:
    """The rewards that an episode is compared with, after shaping."""

    group: str
    rewards: Mapping[str, float]
    """Shaped rewards by episode, the episode itself among them."""

    @property
    def mean(self) -> float:
        return fmean(self.rewards.values())

    @property
    def std(self) -> float:
        return pstdev(self.rewards.values())


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the loss. A number that the algorithm does not know is None."""

    logprob: float
    """Logprob under the weights being trained, when the loss was computed."""
    proximal: float
    """Logprob at the centre of the trust region."""
    reference: float | None
    ratio: float
    """The ratio that the trust region judged."""
    weight: float | None
    """The importance weight as it was used."""
    clip: str
    """The decision of the trust region, in words."""
    bound: str
    """The decision on the importance weight, in words."""
    entropy: float
    value: float | None
    target: float | None
    loss: float
    """The term before the factor `share` and the `divisor`, penalties included."""
    share: float
    """The factor that `aggregation` puts on every term of the episode."""
    divisor: float

    @property
    def part(self) -> float:
        """The part of the loss of its minibatch: `share * loss / divisor`."""
        return self.share * self.loss / self.divisor


@dataclass(frozen=True, slots=True)
class Receipt:
    """The life of a sampled token."""

    episode: str
    turn: int
    place: int
    """Index of the token among the sampled tokens of the turn."""
    token: int
    version: int
    """The version of the weights that sampled the token."""
    logprob: float
    """Logprob under the weights that sampled it, at `temperature`."""
    temperature: float
    reward: float | None
    """The reward of the episode as it was given."""
    preset: str
    step: int | None
    """The step that counted the token; None if none did."""
    from_version: int | None
    """The version with which the step that trained the episode began; None without a record of this step."""
    shaped_reward: float | None
    siblings: Siblings | None
    advantage: float | None
    term: Term | None
    """None if the token has no term in the loss."""
    update_share: float | None
    """Share of the minibatch's update that the trust region left; None if the token has no term."""
    why_not: str
    """The reason why the token taught nothing; empty if it taught something."""


def explain(run_dir: RunDir, episode_id: str, token: int, *, turn: int | None = None) -> Receipt:
    """The receipt of a sampled token. `token` counts from 0 within the episode, or within `turn` if a turn is given."""
    record = run_dir.find_episode(episode_id)
    at, place = _place(record.episode, token, turn)
    tokens = None
    if record.step is not None and (of_step := run_dir.read_tokens(record.step)) is not None:
        tokens = episode_tokens(record.episode, of_step, step=record.step)
    taken_back = "" if record.step is None else _taken_back(run_dir, record.step)
    preset = str(run_dir.read_config().get("algorithm", {}).get("name", "grpo"))
    return _receipt(record, tokens, at, place, preset=preset, taken_back=taken_back)


def _place(episode: Episode, token: int, turn: int | None) -> tuple[int, int]:
    """The turn of a sampled token, and the token's index in it; ConfigError if there is no such token."""
    lengths = [len(one.output_tokens) for one in episode.turns]
    if turn is not None and not 0 <= turn < len(lengths):
        raise ConfigError(
            f"turn {turn}: episode {episode.id} has {len(lengths)} turns, counted from 0"
        )
    turns = range(len(lengths)) if turn is None else [turn]
    left = token
    for at in turns:
        if 0 <= left < lengths[at]:
            return at, left
        left -= lengths[at]
    where = f"episode {episode.id}" if turn is None else f"turn {turn} of episode {episode.id}"
    count = sum(lengths[at] for at in turns)
    raise ConfigError(f"token {token}: {where} sampled {count} tokens, counted from 0")


def _taken_back(run_dir: RunDir, step: int) -> str:
    """A sentence that says which later step took `step` back for the guard; empty if no step did."""
    for event in run_dir.read_steps():
        number, back = event["step"], event.get("train/rolled_back_to")
        if back is not None and back < step < number:
            return (
                f"the guard took its step back: step {number} put the weights of step {back:g} back"
            )
    return ""


def _receipt(
    record: EpisodeRecord,
    tokens: EpisodeTokens | None,
    at: int,
    place: int,
    *,
    preset: str,
    taken_back: str,
) -> Receipt:
    episode = record.episode
    turn = episode.turns[at]
    flags, term, advantage, step = TokenFlag(0), None, None, None
    if tokens is not None and tokens.turns[at].flags[place]:
        found = tokens.turns[at]
        flags = TokenFlag(int(found.flags[place]))
        advantage, step = float(found.advantage[place]), tokens.step
        if flags & TokenFlag.TERM and tokens.divisor is not None:
            term = _term(found, place, flags, tokens.weight, tokens.divisor)
    return Receipt(
        episode=episode.id,
        turn=at,
        place=place,
        token=turn.output_tokens[place],
        version=turn.versions[place],
        logprob=turn.logprobs[place],
        temperature=turn.temperature,
        reward=episode.reward,
        preset=preset,
        step=step,
        from_version=None if tokens is None else tokens.version,
        shaped_reward=None if tokens is None else tokens.reward,
        siblings=None if tokens is None else Siblings(episode.group, tokens.siblings),
        advantage=advantage,
        term=term,
        update_share=None if tokens is None or term is None else tokens.update_share,
        why_not=_why_not(record, tokens, turn, flags, taken_back=taken_back),
    )


def _term(turn: TurnTokens, place: int, flags: TokenFlag, share: float, divisor: float) -> Term:
    def known(values: np.ndarray) -> float | None:
        value = float(values[place])
        return None if math.isnan(value) else value

    return Term(
        logprob=float(turn.logprob[place]),
        proximal=float(turn.proximal[place]),
        reference=known(turn.reference),
        ratio=float(turn.ratio[place]),
        weight=known(turn.weight),
        clip=_clip(flags),
        bound=_bound(flags),
        entropy=float(turn.entropy[place]),
        value=known(turn.value),
        target=known(turn.target),
        loss=float(turn.loss[place]),
        share=share,
        divisor=divisor,
    )


def _clip(flags: TokenFlag) -> str:
    if flags & TokenFlag.CLIPPED_DUAL:
        return "the loss is at its upper bound (dual_clip)"
    if flags & TokenFlag.CLIPPED_LOW:
        return "below the trust region"
    if flags & TokenFlag.CLIPPED_HIGH:
        return "above the trust region"
    return "within the trust region"


def _bound(flags: TokenFlag) -> str:
    if flags & TokenFlag.SCREENED:
        return "0: screened out with the terms that are farthest from the sampler"
    if flags & TokenFlag.MASKED:
        return "0: beyond the maximum"
    if flags & TokenFlag.BOUNDED:
        return "at the maximum"
    return "within its bound"


def _why_not(
    record: EpisodeRecord,
    tokens: EpisodeTokens | None,
    turn: Turn,
    flags: TokenFlag,
    *,
    taken_back: str,
) -> str:
    if flags & TokenFlag.TERM:
        return _why_weightless(tokens, flags) or taken_back
    if flags:
        return "its advantage is 0: it counts in the divisor, and has no term in the loss"
    if turn.excluded is not None:
        return f"its turn is context only: {turn.excluded.value}"
    if record.is_undone:
        return "a resume undid the step that trained it"
    if record.split not in LEARNT:
        return f"its episode is an evaluation ({record.split})"
    if record.dropped is not None:
        return f"its episode was dropped: {record.dropped}"
    if record.step is None:
        return "no step has trained its episode: it waits, or its group was too old when a batch was cut"
    if tokens is None:
        return f"unknown: the record of step {record.step} is gone (run.keep_tokens), or its trainer keeps none"
    if record.episode.truncated and not any(t.flags.any() for t in tokens.turns):
        return "its episode was truncated: its reward counts for its siblings, and its tokens are not trained"
    return "it was too old when the batch was cut (rollout.stale)"


def _why_weightless(tokens: EpisodeTokens | None, flags: TokenFlag) -> str:
    """The reason why a token with a term taught nothing; empty if it taught something."""
    assert tokens is not None
    if not tokens.is_applied:
        return "the update was left out: its gradient was not finite"
    if flags & TokenFlag.SCREENED:
        return "the look at the whole minibatch has removed it: it is among the farthest from the sampler"
    if flags & TokenFlag.MASKED:
        return "its importance weight is beyond the maximum, so it weighs nothing"
    if tokens.update_share == 0.0:
        return "its update was taken back as a whole: no part of it was within trainer.trust_region"
    return ""
