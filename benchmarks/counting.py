"""A game of seconds: to count in steps of a stride, several tokens at a time.

A prompt names one of 4 rules, a stride of 1 to 4. Each of 4 sampled symbols (of 16) that is the one
before it plus the stride, modulo 4, earns a quarter; a random model earns about 0.24. What is right
depends on what the policy itself sampled before. There are 4 groups of 16 siblings a step.

Shapes: B rows that are played at once, L tokens of a row.
"""

from collections.abc import Sequence

import torch
from one_process import Player, trajectory

from areal_sdk.trajectory import TrajectoryGroup

NUM_RULES, NUM_SYMBOLS, NUM_SAMPLED, NUM_SIBLINGS = 4, 16, 4, 16
START = NUM_SYMBOLS
"""The second token of every prompt; the first names the rule."""
VOCABULARY = NUM_SYMBOLS + 1
NUM_JUDGED = 64
"""Fresh samples for each rule in an evaluation."""


def count(player: Player, siblings: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens with the two of the prompt, logprobs of the sampled ones, rewards: rule by rule."""
    rule_B = torch.arange(NUM_RULES).repeat_interleave(siblings)
    tokens_BL = torch.stack([rule_B, torch.full_like(rule_B, START)], 1)
    logprobs = []
    for _ in range(NUM_SAMPLED):
        token_B, logprob_B = player.sample(tokens_BL)
        tokens_BL = torch.cat([tokens_BL, token_B[:, None]], 1)
        logprobs.append(logprob_B)
    sampled_BL = tokens_BL[:, 2:]
    before_BL = torch.cat([torch.zeros_like(rule_B)[:, None], sampled_BL[:, :-1]], 1)
    due_BL = before_BL + rule_B[:, None] + 1
    is_right_BL = (sampled_BL < NUM_SYMBOLS) & (sampled_BL % NUM_RULES == due_BL % NUM_RULES)
    return tokens_BL, torch.stack(logprobs, 1), is_right_BL.float().mean(1)


def play(player: Player, step: int) -> Sequence[TrajectoryGroup]:
    tokens, logprobs, rewards = (found.tolist() for found in count(player, NUM_SIBLINGS))
    rows = [
        trajectory(
            f"{step}-{number}",
            f"rule {token[0]}",
            [(token[0], None), (token[1], None), *zip(token[2:], logprob, strict=True)],
            version=player.version,
            reward=reward,
        )
        for number, (token, logprob, reward) in enumerate(
            zip(tokens, logprobs, rewards, strict=True)
        )
    ]
    return [
        TrajectoryGroup(
            f"{step}-{rule}",
            f"rule {rule}",
            tuple(rows[rule * NUM_SIBLINGS : (rule + 1) * NUM_SIBLINGS]),
        )
        for rule in range(NUM_RULES)
    ]


def evaluate(player: Player) -> float:
    return float(count(player, NUM_JUDGED)[2].mean())
