"""The composition root of `areal-sdk train`, `eval` and `serve`, and of the same functions in Python.

                tasks                                        weights vN
                  |                                              |
                  v                                              v
    StalenessGate -> Dispatcher -- run_episode --> agent --HTTP--> Gateway --> InferenceEngine
                  ^                  |                              |
                  |                  +---------- Episode <----------+  session = Turns
      slot given back only        rewards score it
      when dropped                   v
                  +------------ TrajectoryBuffer -- cut_batch: too stale? drop
                                     v
                     Trainer: advantages -> packing -> loss -> step -> version N + 1
                                     v
                     weights.publish -> WeightUpdate -> engine.update_weights -> (top right)

This package only connects the boxes. The code of each box is in the package of that name.
"""

from areal_sdk.loop.api import (
    check,
    check_resume,
    evaluate,
    evaluate_config,
    resume_training,
    serve_config,
    train,
    train_config,
)
from areal_sdk.loop.learning.state import RunState, RunSummary

__all__ = [
    "RunState",
    "RunSummary",
    "check",
    "check_resume",
    "evaluate",
    "evaluate_config",
    "resume_training",
    "serve_config",
    "train",
    "train_config",
]
