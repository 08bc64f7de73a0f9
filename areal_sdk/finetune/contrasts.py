"""Pairs from run directories: different answers to one prompt, with different rewards.

An answer is the part of an episode after a prompt, and gets the reward of the episode. If an episode has several
conversations, as a caller's session may, an answer gets the sum of the rewards of its own turns.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from areal_sdk.errors import ConfigError
from areal_sdk.finetune.recorded_episodes import (
    CUT_OFF,
    Thread,
    is_text,
    learnt_episodes,
    num_cut_off,
    threads,
)
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.loop.plan.rows import Pair
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_index import EpisodeSummary
from areal_sdk.telemetry.episode_log import read_episode
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.types import Episode

SEVERAL = "several conversations under one reward: post a reward for each turn"


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """An answer to a prompt, and the place where its text is."""

    prompt: bytes
    """Digest of the prompt, since a run may have more answers than fit into memory. `said` is a digest too."""
    said: bytes
    reward: float
    source: EpisodeSummary
    index: int
    """Place of the answer among the answers of the episode."""


@dataclass(slots=True)
class Contrasts:
    """The pairs of a run, oldest first. Each pair has the better answer first."""

    pairs: list[tuple[RatedAnswer, RatedAnswer]] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Ids of episodes that give no answer to compare, by reason."""


def contrasts(run_dir: RunDir) -> Contrasts:
    """The best answer of each group against the worst; ConfigError if there is no pair at all.

    Answers are compared where their prompts are the same. Episodes without a group are all compared
    with each other, and paired off: the best with the worst, the next with the next.
    """
    found = Contrasts()
    by_prompt: dict[tuple[str, bytes], list[RatedAnswer]] = {}
    num_episodes = 0
    for source in reversed(learnt_episodes(run_dir)):
        if source.reward is None:
            continue
        num_episodes += 1
        episode = read_episode(run_dir.episodes, source).episode
        if num_cut_off(episode):
            found.left_out.setdefault(CUT_OFF, []).append(source.id)
            continue
        rewarded = _rewarded(episode)
        if not rewarded and len(threads(episode)) > 1:
            found.left_out.setdefault(SEVERAL, []).append(source.id)
        for index, (thread, reward) in enumerate(rewarded):
            answer = RatedAnswer(_prompt(thread), _said(thread), reward, source, index)
            by_prompt.setdefault((source.group, answer.prompt), []).append(answer)
    for (group, _), answers in by_prompt.items():
        found.pairs += _paired_off(answers)[: 1 if group else None]
    if not found.pairs:
        left_out = [f"; {len(ids)} left out: {why}" for why, ids in found.left_out.items()]
        raise ConfigError(
            f"{run_dir.path}: no pairs: no two different answers to one prompt have different rewards; "
            f"there are {counted(num_episodes, 'rewarded episode')} and {counted(len(by_prompt), 'prompt')}{''.join(left_out)}"
        )
    return found


def _paired_off(answers: Sequence[RatedAnswer]) -> list[tuple[RatedAnswer, RatedAnswer]]:
    """Pairs of best and worst, second best and second worst, and so on, if their rewards differ.

    An answer that was given several times is one answer, with the mean of its rewards.
    """
    rewards: dict[bytes, list[float]] = {}
    for answer in answers:
        rewards.setdefault(answer.said, []).append(answer.reward)
    different = {answer.said: answer for answer in answers}.values()
    means = [replace(one, reward=statistics.mean(rewards[one.said])) for one in different]
    ranked = sorted(means, key=lambda answer: answer.reward, reverse=True)
    halves = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
    return [(better, worse) for better, worse in halves if better.reward > worse.reward]


def _rewarded(episode: Episode) -> list[tuple[Thread, float]]:
    """The conversations of an episode with their rewards; none if one reward is for several of them. If a conversation
    contains the prompt with which another one begins (a second try), the part after that prompt counts too."""
    found = threads(episode)
    if len(found) == 1 and episode.reward is not None:
        return [(found[0], episode.reward)]
    if not episode.outcome.turn_rewards:
        return []
    begins = {_prompt(thread) for thread in found}
    parts = [
        replace(thread, learnt=thread.learnt[start:])
        for thread in found
        for start in range(len(thread.learnt))
    ]
    rewards = [(part, _sum_of_turns(part)) for part in parts if _prompt(part) in begins]
    return [(part, reward) for part, reward in rewards if reward is not None]


def _sum_of_turns(thread: Thread) -> float | None:
    of_turns = (thread.episode.outcome.turn_rewards[turn] for turn in thread.learnt)
    rewards = [reward for reward in of_turns if reward is not None]
    return math.fsum(rewards) if rewards else None


def _prompt(thread: Thread) -> bytes:
    if is_text(thread.episode):
        return _digest(json.dumps([thread.messages()[0], thread.tools], sort_keys=True).encode())
    return _digest(_packed(thread.episode.turns[thread.learnt[0]].prompt_tokens))


def _said(thread: Thread) -> bytes:
    if is_text(thread.episode):
        return _digest(json.dumps(thread.messages()[1], sort_keys=True).encode())
    return _digest(_packed(thread.tokens().tokens))


def _packed(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int64).tobytes()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def read_pair(run_dir: RunDir, chosen: RatedAnswer, rejected: RatedAnswer) -> TokenPair | Pair:
    """Both answers in full: tokens as they were sampled, or text of another provider."""
    better, worse = (
        _rewarded(read_episode(run_dir.episodes, answer.source).episode)[answer.index][0]
        for answer in (chosen, rejected)
    )
    if not is_text(better.episode):
        return TokenPair(better.tokens(), worse.tokens())
    before, said = better.messages()
    where = f"episodes {better.episode.id} and {worse.episode.id}"
    return Pair(tuple(before), tuple(said), tuple(worse.messages()[1]), better.tools, where)
