"""How long a run waits: for its parts, from how long each may take, and for gradients."""

import math

from areal_sdk.config import Config

MIN_CUT_TIMEOUT_S = 3600.0
"""A batch may take this long, or as long as its episodes may."""


MAX_SKIPPED_STEPS = 3
"""In a row. One bad batch passes; weights that overflow do not recover."""

NO_CALLERS_S = 365 * 24 * 3600.0
"""Callers come when they like."""


def cut_timeout_s(config: Config) -> float:
    """For a batch: two generations of the longest episodes, with every retry, and their judges."""
    if config.serve.learn:
        return NO_CALLERS_S
    rollout = config.rollout
    longest_s = rollout.episode_timeout_s * (1 + rollout.infra_retries)
    num_judgements = rollout.max_inflight * len(config.rewards)
    judged_s = rollout.reward_timeout_s * math.ceil(num_judgements / rollout.reward_workers)
    return max(MIN_CUT_TIMEOUT_S, 2 * (longest_s + judged_s) + rollout.wait_s)


def stalled_s(config: Config) -> float:
    """For a slot in the gate: a batch has to come, to be trained, and its weights to arrive."""
    return cut_timeout_s(config) + 2 * config.trainer.step_timeout_s
