"""Cures for the needs of a run: for its verdict, and for notices while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass

LIMITS = "rollout.max_turns, rollout.max_new_tokens or rollout.max_episode_tokens"
SOLVED = 0.95
"""Success from which there is nothing left to learn."""
CUT = 0.3
"""Share of the episodes that ran into a limit, or got no reward, above which episodes have no room."""
LONGER = 1.5
"""Factor by which episodes must have become longer to count as grown."""

NOT_THE_POLICY = (
    "look for what changed beside the policy: state that an environment keeps from one episode to the next, a service "
    "that no longer answers, a reward, or tasks that got harder"
)
"""Advice for a fall that no update can explain."""
TO_GENERALISE = (
    "train on more tasks, as different as the held-out ones, or take fewer steps (run.steps)"
)
WITHOUT_REWARD = {
    "batch/unjudged_share": f"if a limit ended them, raise {LIMITS}, or let the agent score them",
    "batch/timeout_share": "raise rollout.episode_timeout_s, or bound the episodes by rollout.max_turns",
    "batch/agent_error_share": "catch what the agent raises, or set rollout.on_agent_error to a reward",
    "batch/reward_error_share": "let the reward function return a low number for what it cannot read",
    "batch/environment_error_share": "let the environment answer what it cannot read with a low reward",
}
"""Advice for each share of episodes without a reward."""


def to_get_rewards(shares: Mapping[str, float]) -> str:
    """Advice for the largest of these shares of episodes without a reward.

    >>> to_get_rewards({"batch/timeout_share": 0.5, "batch/unjudged_share": 0.1})
    'raise rollout.episode_timeout_s, or bound the episodes by rollout.max_turns'
    """
    return WITHOUT_REWARD[max(WITHOUT_REWARD, key=lambda name: shares.get(name, 0.0))]


def to_get_a_signal(success: float, *, solved: float = SOLVED) -> str:
    """Advice if the attempts at each task earn the same, and this share of them succeeds."""
    if success >= solved:
        return "take harder tasks"
    return (
        "show an example in the prompt, imitate demonstrations first (areal-sdk sft), reward partial success, or "
        "begin with easier tasks"
    )


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of episodes."""

    tokens: float
    """Sampled tokens of an episode, the mean."""
    cut: float
    """The share of the episodes that ran into a limit."""

    def growth_since(self, before: "Lengths", *, least: float = CUT) -> str | None:
        """The growth of episodes into a limit, in words; None if they did not grow into one. A step that moves each
        token by little may change the length by much, if the token that ends an answer becomes rare.

        >>> Lengths(230.0, 0.8).growth_since(Lengths(20.0, 0.0))
        'episodes grew from 20 to 230 sampled tokens, and 80% of them run into a limit (0% before)'
        """
        if self.cut - before.cut <= least or self.tokens < LONGER * before.tokens:
            return None
        return (
            f"episodes grew from {before.tokens:.0f} to {self.tokens:.0f} sampled tokens, and {self.cut:.0%} of them "
            f"run into a limit ({before.cut:.0%} before)"
        )
