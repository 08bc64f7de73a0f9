"""The state of the simulated trainer and its weights: waiting, training, being delivered."""

from dataclasses import dataclass

from areal_sdk_plan.simulation.buffer import SimulatedBatch
from areal_sdk_plan.simulation.forecast import StepRecord


@dataclass(slots=True)
class StepUnderWay:
    """The step that the trainer works on."""

    batch: SimulatedBatch
    record: StepRecord
    left_s: float
    """Work to do, in seconds at full pace."""
    began_at: float
    paced_at: float
    stamp: int = 0


@dataclass(slots=True)
class Delivery:
    """Weights on their way to the servers."""

    version: int
    is_sent: bool = False
    """No server has requests to end first."""
    is_done: bool = False


@dataclass(slots=True)
class BatchWait:
    """The trainer waits for a batch."""

    began_at: float
    is_held: bool = False
    """The step could begin, and waits for running groups."""
