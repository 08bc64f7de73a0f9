"""The critic's loss: the distance of its values from the actual returns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from areal_sdk.algorithms.objectives.terms import Loss, masked
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Critic:
    """A model of its own that predicts returns: the trunk of the checkpoint and a scalar head."""

    learning_rate: float
    """Learning rate of the critic's own AdamW, with the warm-up and the gradient bound of the trainer."""
    clip: float | None = None
    """Distance that a value may move towards its target within one step; None: any distance."""

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ConfigError(f"critic learning rate = {self.learning_rate}: give a positive one")
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"value clip = {self.clip}: give a positive number")

    def loss(
        self, values_T: "Tensor", old_T: "Tensor", returns_T: "Tensor", mask_T: "Tensor"
    ) -> Loss:
        """Half the squared error. With a clip, the larger of the two errors, as in PPO's published code (Schulman et
        al. 2017).

        The targets and the values at the start of the step are held fixed.
        """
        error_T = masked(values_T - returns_T, mask_T).square() / 2.0
        if self.clip is None:
            return Loss(error_T)
        moved_T = values_T - old_T
        near_T = old_T + moved_T.clamp(-self.clip, self.clip)
        near_error_T = masked(near_T - returns_T, mask_T).square() / 2.0
        # Within the clip both errors are the same but for rounding.
        held_T = (moved_T.abs() > self.clip) & (near_error_T > error_T)
        return Loss(error_T.maximum(near_error_T), {"value_clip_fraction": held_T.sum()})
