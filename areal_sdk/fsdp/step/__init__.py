"""One optimiser step from trajectory groups to metrics; every rank runs the same code.

    groups -> [scores: reference, values] -> advantages -> examples -> minibatches -> trees in rows
           -> dealt to the ranks -> [proximal logprobs] -> per minibatch: forward, loss / N, backward;
              clip; AdamW; [the same for the critic]

Each rank gets the same groups and derives the same plan from them. So the ranks need not agree on a
plan: they exchange only scores, gradients and metrics.
"""

from areal_sdk.fsdp.step.rank_trainer import RankTrainer

__all__ = ["RankTrainer"]
