"""The nouns that flow through a run, in the order they are made.

    Task -> Turn* -> Episode -> (trajectory.Trajectory, algorithms.Batch) -> WeightUpdate

Plain frozen dataclasses: no tensors, no I/O, picklable, JSON-able.
"""

from areal_sdk.types.episodes import Episode, ErrorKind, Outcome, OutcomeKind, Task
from areal_sdk.types.turns import (
    Exclusion,
    FinishReason,
    ForkReason,
    Message,
    Tool,
    Turn,
    alternatives,
    pack_turns,
    recorded_indices,
    unpack_turns,
)
from areal_sdk.types.weights import UpdateContents, WeightUpdate

__all__ = [
    "Episode",
    "ErrorKind",
    "Exclusion",
    "FinishReason",
    "ForkReason",
    "Message",
    "Outcome",
    "OutcomeKind",
    "Task",
    "Tool",
    "Turn",
    "UpdateContents",
    "WeightUpdate",
    "alternatives",
    "pack_turns",
    "recorded_indices",
    "unpack_turns",
]
