"""The input and the output of an objective, and the loss of a critic. Imports no torch: tensors bring their methods.

Shapes: T loss terms, the trained tokens of a micro-batch.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """One micro-batch of loss terms. All logprobs are of logits / T."""

    current_T: "Tensor"
    """q: under the weights being trained; carries the gradient."""
    proximal_T: "Tensor"
    """p: the trust region's centre, as `Algorithm.proximal` says."""
    behaviour_T: "Tensor"
    """b: under the weights that sampled the token."""
    advantages_T: "Tensor"
    mask_T: "Tensor"
    """Mask of the terms. False marks padding, which a rank without work has as its only entry."""
    sequences_T: "Tensor"
    """Index of the trajectory, in the micro-batch, to which a term belongs. Trajectories are always whole."""
    groups_T: "Tensor"
    """Index of the group, in the step, to which a term belongs."""
    lags_T: "Tensor"
    """Versions between the sampler and the start of this step."""
    weights_T: "Tensor"
    """The factors by which `Algorithm.aggregation` multiplies the loss of each term."""
    divisor: float
    """The divisor of the sum of all weighted losses, over micro-batches and ranks."""
    reference_T: "Tensor | None" = None
    """Logprobs under the checkpoint that the run began with (`needs.reference`)."""
    values_T: "Tensor | None" = None
    """The critic's values at the start of the step (`needs.values`)."""
    returns_T: "Tensor | None" = None
    """The estimator's returns; if it has none, the undiscounted return of each token's turn, 0 where
    nothing was scored (`needs.returns`)."""
    entropies_T: "Tensor | None" = None
    """The entropy of each token's distribution, with a gradient (`needs.entropy`)."""
    kept_T: "Tensor | None" = None
    """Mask of an objective with a screen: False for the terms that the screen removed."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of each term, before the aggregation weighs it, and numbers to report."""

    terms_T: "Tensor"
    totals: "dict[str, Tensor]" = field(default_factory=dict)
    """Sums over the terms inside the mask. Their means over a step are reported."""
    maxima: "dict[str, Tensor]" = field(default_factory=dict)
    of_terms: "dict[str, Tensor]" = field(default_factory=dict)
    """Numbers of each term for the record of the step, without a gradient: `log_ratio`, `log_weight` before any bound,
    `weight` as it was used, and masks `clipped_low`, `clipped_high`, `clipped_dual` and `bounded`. Each may be missing."""

    @property
    def sum(self) -> "Tensor":
        """The unweighted sum over the terms."""
        return self.terms_T.sum()

    def weighted(self, weights_T: "Tensor") -> "Tensor":
        return (self.terms_T * weights_T).sum()


class Objective(Protocol):
    """The loss of each term. `needs` (see `Needs`) says what is read beside advantages."""

    def __call__(self, terms: PolicyTerms) -> Loss: ...


@runtime_checkable
class Screens(Protocol):
    """An objective that looks at a whole minibatch, over all ranks, before its first backward.

    It declares `needs = Needs(minibatch=True)`.
    """

    def keep(self, log_weights_T: "Tensor") -> "Tensor":
        """Mask of the terms that stay, given log p - log b of every term of the minibatch."""


def given(values_T: "Tensor | None", name: str) -> "Tensor":
    """A field of `PolicyTerms` that `needs` asks for. ConfigError if `needs` did not ask for it."""
    if values_T is None:
        raise ConfigError(
            f"the objective reads {name}, which its `needs` does not ask for: declare "
            f"needs = Needs({name}=True)"
        )
    return values_T


def masked(values_T: "Tensor", mask_T: "Tensor") -> "Tensor":
    """The values, with zeros outside of `mask_T`, in value and in gradient, whatever was there.

    Mask *before* exp: a NaN or an infinity that is multiplied by zero stays one.

    >>> import torch
    >>> x = torch.tensor([0.0, float("nan")], requires_grad=True)
    >>> y = masked(x, torch.tensor([True, False])).exp().sum()
    >>> y.backward()
    >>> y.item(), x.grad
    (2.0, tensor([1., 0.]))
    """
    return values_T.where(mask_T, 0.0)


class InTrajectories(Protocol):
    """Loss terms, by the trajectory to which each belongs."""

    @property
    def mask_T(self) -> "Tensor": ...
    @property
    def sequences_T(self) -> "Tensor": ...


def sequence_means(values_T: "Tensor", terms: InTrajectories, *, shortest: float = 1.0) -> "Tensor":
    """The mean of `values_T` over each term's trajectory: the sum divided by the number of terms, or by `shortest` if larger.

    Trajectories are whole, so this is the mean over all their terms. Gradients flow through the mean.
    """
    count = len(terms.sequences_T)  # or fewer: to ask how many would wait for the device
    kept_T = masked(values_T, terms.mask_T)
    sums_S = kept_T.new_zeros(count).index_add(0, terms.sequences_T, kept_T)
    ones_T = terms.mask_T.to(kept_T.dtype)
    counts_S = kept_T.new_zeros(count).index_add(0, terms.sequences_T, ones_T)
    return (sums_S / counts_S.clamp(min=shortest))[terms.sequences_T]


def imitation(current_T: "Tensor", weights_T: "Tensor", mask_T: "Tensor") -> Loss:
    """The negative logprob of each demonstrated token, weighted: supervised fine-tuning has ones."""
    return Loss(-masked(current_T * weights_T, mask_T))


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
