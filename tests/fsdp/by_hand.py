"""A step computed anew, token by token in float64, from episodes and plain transformers models.

Nothing here calls the code that trains. Every turn earns the reward of its episode, and nothing is discounted.

The names of numbers are those of the page on algorithms: b, p, q and ref are logprobs of the sampler, the centre of the trust
region, the trained weights and the reference; A is the advantage, w the importance weight, r the ratio.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from areal_sdk.types import Episode

Key = tuple[str, int, int]
"""Episode, turn, and place of the token in the turn."""


@dataclass(frozen=True)
class Group:
    """Siblings, and the turns of each that are one sequence of the trainer."""

    source: str
    episodes: tuple[Episode, ...]
    sequences: Mapping[str, tuple[tuple[int, ...], ...]]

    def tokens(self, episode: Episode) -> list[Key]:
        """The trained tokens of an episode in the order they were sampled."""
        return [
            (episode.id, at, place)
            for at, turn in enumerate(episode.turns)
            if turn.excluded is None
            for place in range(len(turn.output_tokens))
        ]


@dataclass(frozen=True)
class Numbers:
    """The numbers of a term."""

    b: float
    p: float
    q: float
    ref: float
    entropy: float
    A: float
    w: float
    r: float
    loss: float
    share: float
    divisor: float
    is_low: bool
    is_high: bool


def logprobs(model_dir: Path, groups: Sequence[Group]) -> dict[Key, tuple[float, float]]:
    """Logprob and entropy of each trained token under a plain model: one sequence a turn, nothing shared or packed."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    found: dict[Key, tuple[float, float]] = {}
    for episode in (e for group in groups for e in group.episodes):
        for at, turn in enumerate(episode.turns):
            if turn.excluded is not None:
                continue
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([turn.tokens])).logits[0]
            first = len(turn.prompt_tokens) - 1
            rows = torch.log_softmax(logits[first:-1] / turn.temperature, dim=-1)
            for place, token in enumerate(turn.output_tokens):
                row = rows[place]
                found[episode.id, at, place] = float(row[token]), float(-(row.exp() * row).sum())
    return found


def split(groups: Sequence[Group], parts: int) -> list[list[int]]:
    """Whole groups into minibatches with about as many tokens: the largest first, to the emptiest."""
    sizes = [sum(len(g.tokens(e)) for e in g.episodes) for g in groups]
    chosen: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        totals = [sum(sizes[i] for i in part) for part in chosen]
        chosen[totals.index(min(totals))].append(index)
    return chosen


# advantages


def _against_siblings(groups: Sequence[Group], scale: str = "") -> dict[Key, float]:
    everything = [e.reward for g in groups for e in g.episodes]
    found: dict[Key, float] = {}
    for group in groups:
        rewards = np.array([e.reward for e in group.episodes], float)
        count = len(rewards)
        for episode in group.episodes:
            value = float(episode.reward or 0.0) - rewards.mean()
            value /= {"group": rewards.std(), "batch": np.std(np.array(everything, float))}.get(
                scale, 1.0
            )
            if scale == "others":
                value *= count / (count - 1)
            found |= dict.fromkeys(group.tokens(episode), float(value))
    return found


def _in_units_of_the_batch(values: Mapping[Key, float]) -> dict[Key, float]:
    all_values = np.array([*values.values()])
    return {key: (v - all_values.mean()) / all_values.std() for key, v in values.items()}


def _rewards(groups: Sequence[Group], shape: Callable[[float], float]) -> dict[Key, float]:
    return {
        key: shape(float(episode.reward or 0.0))
        for group in groups
        for episode in group.episodes
        for key in group.tokens(episode)
    }


def _usual(before: Sequence[float], value: float) -> float:
    """The distance of a return from those before it, in spreads; far ones are bounded."""
    middle = float(np.median(before))
    apart = sorted(abs(v - middle) for v in before if abs(v - middle) > 1e-6)
    typical = 1.4826 * apart[(len(apart) - 1) // 2] if apart else 0.0
    kept = np.clip(before, middle - 5 * typical, middle + 5 * typical)
    distance = value - kept.mean()
    spread = math.sqrt((((kept - kept.mean()) ** 2).sum() + distance**2) / (len(kept) + 1))
    return float(np.clip(distance / spread, -5, 5))


def advantages(
    preset: str,
    groups: Sequence[Group],
    *,
    earlier: Sequence[Group],
    b: Mapping[Key, float],
    ref: Mapping[Key, float],
    values: Mapping[Key, float],
) -> dict[Key, float]:
    """The advantage of each trained token. `earlier`: the groups of the step before."""
    if preset in ("drgrpo", "rloo", "litepo"):
        scale = {"drgrpo": "", "rloo": "others", "litepo": "batch"}[preset]
        return _against_siblings(groups, scale)
    if preset == "reinforce_plus_plus_baseline":
        return _in_units_of_the_batch(_against_siblings(groups))
    if preset == "areal":
        shaped = _rewards(groups, lambda reward: np.clip((reward - 0.5) * 10.0, -20, 20))
        return _in_units_of_the_batch(shaped)
    if preset == "ppo":
        found = _rewards(groups, float)
        return _in_units_of_the_batch({key: v - values[key] for key, v in found.items()})
    if preset == "reinforce_plus_plus":
        found = _rewards(groups, float)
        for group in groups:
            for episode in group.episodes:
                lost = 0.0
                for key in reversed(group.tokens(episode)):
                    lost += 0.05 * (b[key] - ref[key])
                    found[key] -= lost
        return _in_units_of_the_batch(found)
    if preset == "running_baseline":
        found = {}
        known: dict[str, list[float]] = {}
        for group in [*earlier, *groups]:
            before = known.get(group.source, [])
            for episode in group.episodes:
                reward = float(episode.reward or 0.0)
                score = _usual(before, reward) if before else 0.0
                found |= dict.fromkeys(group.tokens(episode), score)
            rewards = [float(e.reward or 0.0) for e in group.episodes]
            known[group.source] = [*before, *rewards][-32:]
        return found
    return _against_siblings(groups, "group")


# losses


def _k3(d: float) -> float:
    """Not beyond -3, where it goes on as a straight line."""
    bent = max(d, -3.0)
    return math.exp(-bent) - 1.0 + bent + (bent - d) * (math.exp(3.0) - 1.0)


_CLIPS = {
    **dict.fromkeys(("grpo", "dapo", "m2po", "naive_ppo", "running_baseline"), (0.2, 0.28)),
    "gspo": (3e-4, 4e-4),
}


def _gain(preset: str, r: float, A: float, q: float) -> tuple[float, bool, bool]:
    """What a term gains, and whether its ratio was too low or too high."""
    if preset == "rloo":
        return r * A, False, False
    if preset == "sapo":
        tau = 1.0 if A > 0 else 1.05
        return 4.0 / tau / (1.0 + math.exp(-tau * (r - 1.0))) * A, False, False
    if preset == "cispo":
        return min(r, 5.0) * A * q, False, r > 5.0
    low, high = _CLIPS.get(preset, (0.2, 0.2))
    is_held = min(max(r, 1.0 - low), 1.0 + high) * A < r * A
    gain = min(r * A, min(max(r, 1.0 - low), 1.0 + high) * A)
    return gain, is_held and r < 1.0, is_held and r > 1.0


def _weight(preset: str, log_w: float) -> float:
    if preset == "naive_ppo":
        return 1.0
    if preset == "m2po":
        return math.exp(log_w)
    if preset == "areal":
        return math.exp(log_w) if math.exp(log_w) <= 5.0 else 0.0
    return min(math.exp(log_w), 5.0)


def _screened(log_w: Mapping[Key, float]) -> set[Key]:
    """The fewest terms without which the mean square of log w is below 0.04."""
    order = sorted(log_w, key=lambda key: log_w[key] ** 2)
    kept, total = 0, 0.0
    for key in order:
        total += log_w[key] ** 2
        if total / (kept + 1) >= 0.04:
            break
        kept += 1
    return set(order[max(kept, 1) :])


def minibatch(
    preset: str,
    groups: Sequence[Group],
    *,
    A: Mapping[Key, float],
    p: Mapping[Key, float],
    q: Mapping[Key, tuple[float, float]],
    ref: Mapping[Key, float],
    b: Mapping[Key, float],
) -> dict[Key, Numbers]:
    """Every term of a minibatch."""
    lengths = {e.id: len(g.tokens(e)) for g in groups for e in g.episodes}
    keys = [key for g in groups for e in g.episodes for key in g.tokens(e)]
    log_w = {key: p[key] - b[key] for key in keys}
    log_r = {key: q[key][0] - p[key] for key in keys}
    told = dict(A)
    if preset == "naive_ppo":
        log_r = {key: q[key][0] - b[key] for key in keys}
    if preset == "gspo":
        for turns in _sequences(groups, keys):
            for numbers in (log_w, log_r, told):
                mean = float(np.mean([numbers[key] for key in turns]))
                numbers |= dict.fromkeys(turns, mean)
    gone = _screened(log_w) if preset == "m2po" else set()
    is_mean_of_sequences = preset in ("gspo", "sapo")
    divisor: float = len(lengths) if is_mean_of_sequences else len(keys)
    if preset == "drgrpo":
        divisor = 256.0 * len(lengths)
    found = {}
    for key in keys:
        r = math.exp(log_r[key])
        gain, is_low, is_high = _gain(preset, r, told[key], q[key][0])
        w = 0.0 if key in gone else _weight(preset, log_w[key])
        loss = -w * gain
        if preset == "grpo":
            loss += 0.1 * _k3(q[key][0] - ref[key]) - 0.01 * q[key][1]
        found[key] = Numbers(
            b=b[key],
            p=b[key] if preset == "naive_ppo" else p[key],
            q=q[key][0],
            ref=ref[key],
            entropy=q[key][1],
            A=A[key],
            w=w,
            r=r,
            loss=loss,
            share=1.0 / lengths[key[0]] if is_mean_of_sequences else 1.0,
            divisor=divisor,
            is_low=is_low,
            is_high=is_high,
        )
    return found


def _sequences(groups: Sequence[Group], keys: Sequence[Key]) -> list[list[Key]]:
    """The terms of each sequence."""
    return [
        [key for key in keys if key[0] == name and key[1] in turns]
        for group in groups
        for name, of_episode in group.sequences.items()
        for turns in of_episode
    ]
