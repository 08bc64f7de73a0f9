"""The figures of a simulated run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from areal_sdk_plan.simulation.servers import SimulatedServer
    from areal_sdk_plan.simulation.setup import Setup


@dataclass(slots=True)
class StepRecord:
    """One step of the simulated run."""

    waited_s: float
    """Seconds that the step waited for its batch, held ones included."""
    num_sampled: int
    """Number of sampled tokens that the step trains."""
    num_rows: float
    """Number of tokens that the step computes."""
    ages: tuple[int, ...]
    """Versions that the oldest token of each episode lagged behind."""
    num_running: int
    """Number of episodes that ran when the step's batch was cut."""
    groups: tuple[int, ...]
    """The groups that the step trains, by the order of their start."""
    step_s: float = 0.0
    ended_at: float = 0.0
    """Time at which the step's weights were published."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Rates and shares over the counted steps of a simulated run."""

    steps: int
    step_s: float
    """Seconds from one publication to the next: the mean."""
    tokens_per_s: float
    """Sampled tokens that are trained."""
    trainer_s: float
    """Seconds of a step that are the trainer's own part."""
    waited_s: float
    """Seconds of a step in which the trainer waits for its batch."""
    staleness: Mapping[int, float]
    """Share of the trained episodes by the age of their oldest token, in versions."""
    trainer_idle: float
    """Part of the time that the trainer does not compute."""
    engine_idle: float
    """Part of the time that a server has no request that it may work on."""
    requests_per_engine: float
    """Decoded together, while a server computes."""
    dropped_share: float
    """Episodes of those that ended which were not trained."""
    running: float
    """Episodes in flight when a batch was cut."""

    @classmethod
    def of(
        cls,
        setup: "Setup",
        records: Sequence[StepRecord],
        *,
        warm: int,
        lasted_s: float,
        servers: Sequence["SimulatedServer"],
        dropped: Mapping[str, int],
    ) -> Self:
        counted = records[warm:]
        began_at = records[warm - 1].ended_at if warm else 0.0
        seconds = counted[-1].ended_at - began_at
        ages = Counter(age for record in counted for age in record.ages)
        num_ages = max(1, sum(ages.values()))
        trainer_s = sum(record.step_s for record in counted)
        busy_s = sum(server.busy_s for server in servers)
        lost = sum(dropped.values())
        num_trained = len(records) * setup.rules.gate.batch
        return cls(
            steps=len(counted),
            step_s=seconds / len(counted),
            tokens_per_s=sum(record.num_sampled for record in counted) / seconds,
            trainer_s=trainer_s / len(counted),
            waited_s=sum(record.waited_s for record in counted) / len(counted),
            staleness={age: ages[age] / num_ages for age in sorted(ages)},
            trainer_idle=max(0.0, 1.0 - trainer_s / seconds),
            engine_idle=max(0.0, 1.0 - busy_s / (lasted_s * len(servers))),
            requests_per_engine=sum(s.slot_s for s in servers) / busy_s if busy_s else 0.0,
            dropped_share=lost / max(1, lost + num_trained),
            running=sum(record.num_running for record in counted) / len(counted),
        )

    @property
    def steps_per_s(self) -> float:
        return 1.0 / self.step_s

    @property
    def mean_staleness(self) -> float:
        return sum(age * share for age, share in self.staleness.items())

    def to_json(self) -> dict[str, Any]:
        values = {**asdict(self), "mean_staleness": self.mean_staleness}
        values["staleness"] = {str(age): share for age, share in self.staleness.items()}
        return values
