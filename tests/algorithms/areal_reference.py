"""The semantics of AReaL's actor configuration, as plain loops over float64 numbers.

Written from what its keys mean (`eps_clip`, `c_clip`, `behav_imp_weight_cap`, `reward_norm`, `adv_norm`
and so on), for comparison; nothing here is AReaL's code. Shapes are lists: one number a sampled token.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

Numbers = Sequence[float]


@dataclass(frozen=True)
class Norm:
    """`reward_norm` and `adv_norm`."""

    mean_level: str | None = "batch"
    std_level: str | None = "batch"
    mean_leave1out: bool = False
    std_unbiased: bool = True
    eps: float = 1e-5


@dataclass(frozen=True)
class Actor:
    """The keys under `actor` that decide advantages and loss, with AReaL's defaults."""

    eps_clip: float = 0.2
    eps_clip_higher: float | None = None
    c_clip: float | None = None
    behav_imp_weight_cap: float | None = None
    behave_imp_weight_mode: str = "token_mask"
    importance_sampling_level: str = "token"
    reward_scaling: float = 1.0
    reward_bias: float = 0.0
    reward_clip: float = 20.0
    reward_norm: Norm | None = None
    adv_norm: Norm | None = None
    kl_ctl: float = 0.0
    discount: float = 1.0
    overlong_tokens: int | None = None
    overlong_penalty_factor: float = 1.0
    max_new_tokens: int = 1024


@dataclass(frozen=True)
class Sample:
    """One answer: what it earned, and the logprobs of its tokens under sampler and reference."""

    reward: float
    logprobs: Numbers
    reference: Numbers


def advantages(actor: Actor, groups: Sequence[Sequence[Sample]]) -> list[list[list[float]]]:
    """The advantage of each token of each sample of each group."""
    rewards = [[_shaped(actor, sample) for sample in group] for group in groups]
    if actor.reward_norm is not None:
        rewards = _normalised(actor.reward_norm, rewards)
    rows = [
        [_returns(actor, sample, reward) for sample, reward in zip(*of_group, strict=True)]
        for of_group in zip(groups, rewards, strict=True)
    ]
    if actor.adv_norm is None:
        return rows
    by_group = [[value for row in group for value in row] for group in rows]
    flat = [iter(values) for values in _normalised(actor.adv_norm, by_group)]
    return [
        [[next(values) for _ in row] for row in group]
        for group, values in zip(rows, flat, strict=True)
    ]


def _shaped(actor: Actor, sample: Sample) -> float:
    reward = sample.reward
    if actor.overlong_tokens is not None:
        over = len(sample.logprobs) - (actor.max_new_tokens - actor.overlong_tokens)
        reward += min(0.0, -over / actor.overlong_tokens * actor.overlong_penalty_factor)
    scaled = (reward + actor.reward_bias) * actor.reward_scaling
    return max(-actor.reward_clip, min(actor.reward_clip, scaled))


def _returns(actor: Actor, sample: Sample, reward: float) -> list[float]:
    """The returns without a critic and with lambda 1: discounted sums of what is still to come."""
    earned = [
        -actor.kl_ctl * (b - r) for b, r in zip(sample.logprobs, sample.reference, strict=True)
    ]
    earned[-1] += reward
    return [
        sum(value * actor.discount**later for later, value in enumerate(earned[start:]))
        for start in range(len(earned))
    ]


def _normalised(norm: Norm, groups: list[list[float]]) -> list[list[float]]:
    everything = [value for group in groups for value in group]

    def pool(level: str | None, group: list[float]) -> list[float]:
        return everything if level == "batch" else group

    def centre(value: float, group: list[float]) -> float:
        if norm.mean_level is None:
            return 0.0
        values = pool(norm.mean_level, group)
        if norm.mean_leave1out:
            return (sum(values) - value) / (len(values) - 1)
        return fmean(values)

    def spread(group: list[float]) -> float:
        if norm.std_level is None:
            return 1.0
        members = [g for g in groups if norm.std_level == "batch" or g is group]
        squares = [(value - centre(value, g)) ** 2 for g in members for value in g]
        return math.sqrt(sum(squares) / (len(squares) - norm.std_unbiased)) + norm.eps

    return [[(value - centre(value, group)) / spread(group) for value in group] for group in groups]


@dataclass(frozen=True)
class Token:
    q: float
    p: float
    b: float
    advantage: float
    sequence: int = 0
    trained: bool = True


def loss(actor: Actor, tokens: Sequence[Token]) -> tuple[float, list[float]]:
    """The actor's loss, a mean over trained tokens, and its derivative by each token's logprob."""
    trained = [token for token in tokens if token.trained]
    count = len(trained) or 1

    def of_sequence(token: Token, value: Callable[[Token], float]) -> float:
        return fmean(value(t) for t in trained if t.sequence == token.sequence)

    def term(token: Token) -> tuple[float, float]:
        """The loss of a token, and its slope by the logarithm of its ratio."""
        by_sequence = actor.importance_sampling_level == "sequence"
        log_ratio = of_sequence(token, _moved) if by_sequence else _moved(token)
        advantage = of_sequence(token, _advantage) if by_sequence else token.advantage
        ratio, weight = math.exp(log_ratio), _weight(actor, token, of_sequence)
        high = actor.eps_clip if actor.eps_clip_higher is None else actor.eps_clip_higher
        bounded = max(1.0 - actor.eps_clip, min(1.0 + high, ratio))
        value, slope = -advantage * ratio, -advantage * ratio
        if -advantage * bounded > value:
            value, slope = -advantage * bounded, 0.0
        if actor.c_clip is not None and advantage < 0.0 and value > -actor.c_clip * advantage:
            value, slope = -actor.c_clip * advantage, 0.0
        return weight * value, weight * slope

    terms = {id(token): term(token) for token in trained}
    total = sum(value for value, _ in terms.values()) / count

    def slope(token: Token) -> float:
        if not token.trained:
            return 0.0
        if actor.importance_sampling_level == "token":
            return terms[id(token)][1] / count
        return of_sequence(token, lambda t: terms[id(t)][1]) / count

    return total, [slope(token) for token in tokens]


def _moved(token: Token) -> float:
    return token.q - token.p


def _advantage(token: Token) -> float:
    return token.advantage


def _weight(
    actor: Actor, token: Token, of_sequence: Callable[[Token, Callable[[Token], float]], float]
) -> float:
    cap, mode = actor.behav_imp_weight_cap, actor.behave_imp_weight_mode
    log_weight = token.p - token.b
    if mode.startswith("sequence"):
        log_weight = of_sequence(token, lambda t: t.p - t.b)
    weight = math.exp(log_weight)
    if cap is None or weight <= cap:
        return weight
    return cap if mode.endswith("truncate") else 0.0


def kept_by_m2po(log_weights: Numbers, threshold: float) -> list[bool]:
    """Leaves out the largest squares, one by one, until the mean of the others is below the bound."""
    kept = sorted(range(len(log_weights)), key=lambda i: log_weights[i] ** 2)
    while len(kept) > 1 and fmean(log_weights[i] ** 2 for i in kept) >= threshold:
        kept.pop()
    return [i in kept for i in range(len(log_weights))]


def loglinear_proximal(
    behaviour: Iterable[float], current: Iterable[float], ages: Iterable[int]
) -> list[float]:
    """`prox_logp_method = "loglinear"`; `ages`: versions from the sampler to the newest weights."""
    return [
        b + ((age - 1) / age if age > 0 else 0.0) * (q - b)
        for b, q, age in zip(behaviour, current, ages, strict=True)
    ]
