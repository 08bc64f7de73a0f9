"""Machines that fail: how often, and what a failure costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossRates:
    """Rates at which parts of a run are lost, and the time that they are away. 0: never."""

    engine_mtbf_s: float = 0.0
    """Mean time between losses of one server."""
    engine_restart_s: float = 300.0
    """Seconds until a lost server serves the current weights again. Its requests go on elsewhere
    meanwhile."""
    trainer_mtbf_s: float = 0.0
    """Mean time between losses of any rank of the trainer. Each ends the step."""
    trainer_restart_s: float = 600.0
    """Seconds until the ranks have loaded the last checkpoint."""
    checkpoint_every: int = 20
    """Steps between checkpoints; those since the last are made again. 0: nothing is made again. The default
    is that of `run.checkpoint_every`."""

    def trainer_share(self, step_s: float) -> float:
        """Part of the time that the trainer makes progress, by the mean cost of a loss.

        >>> LossRates(trainer_mtbf_s=9000.0, trainer_restart_s=500.0, checkpoint_every=10).trainer_share(100.0)
        0.9
        """
        if not self.trainer_mtbf_s:
            return 1.0
        redone = 0.5 * self.checkpoint_every if self.checkpoint_every else 0.5
        lost_s = self.trainer_restart_s + redone * step_s
        return self.trainer_mtbf_s / (self.trainer_mtbf_s + lost_s)

    def engine_share(self) -> float:
        """Part of the servers that are up."""
        if not self.engine_mtbf_s:
            return 1.0
        return self.engine_mtbf_s / (self.engine_mtbf_s + self.engine_restart_s)
