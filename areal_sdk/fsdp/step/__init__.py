"""One optimiser step from trajectory groups to metrics; every rank runs the same code.

    groups -> [scores: reference, values] -> advantages -> examples -> minibatches -> trees in rows
           -> dealt to the ranks -> [proximal logprobs] -> per minibatch: forward, loss / N, backward;
              clip; AdamW; [the same for the critic]

Each rank gets the same groups and derives the same plan from them, so that nothing about the work
needs to be agreed upon; only scores, gradients and metrics are reduced.
"""

from areal_sdk.fsdp.step.rank_trainer import RankTrainer

__all__ = ["RankTrainer"]
