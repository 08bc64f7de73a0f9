"""An algorithm: small frozen specs put together, and their needs, which a step must provide.

Imports no torch, so that a combination is checked before any process starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from areal_sdk.algorithms.advantages import (
    AdvantageEstimator,
    gives_returns,
    idle_groups,
    learns_alone,
)
from areal_sdk.algorithms.aggregation import Aggregation, TokenMean
from areal_sdk.algorithms.needs import Coverage, Needs, needs_of
from areal_sdk.algorithms.objectives import (
    KL,
    Critic,
    NoWeight,
    Objective,
    Proximal,
    ReferenceKL,
    Screens,
)
from areal_sdk.algorithms.shaping import RewardShaping
from areal_sdk.errors import ConfigError
from areal_sdk.options import validate_options
from areal_sdk.trainer import IdleGroups


def make_algorithm(
    name: str, preset: Callable[..., object], options: Mapping[str, object]
) -> "Algorithm":
    """The algorithm that the preset of `algorithm.name` makes of the options of its table."""
    algorithm = preset(**validate_options(preset, options, table=f"algorithm.{name}"))
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm {name!r} gave {algorithm!r}: a preset takes its options as keyword "
            "parameters and returns an Algorithm (areal_sdk.algorithms)"
        )
    return algorithm


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The way from rewards to a gradient. ConfigError for parts that do not go together."""

    advantages: AdvantageEstimator
    objective: Objective
    proximal: Proximal = Proximal.RECOMPUTE
    aggregation: Aggregation = field(default_factory=TokenMean)
    shaping: RewardShaping | None = None
    critic: Critic | None = None

    def __post_init__(self) -> None:
        try:  # a preset of a user may have passed its text on
            object.__setattr__(self, "proximal", Proximal(self.proximal))
        except ValueError:
            raise ConfigError(
                f"proximal = {self.proximal!r}: choose one of {', '.join(Proximal)}"
            ) from None
        if needs_of(self.objective).minibatch and not isinstance(self.objective, Screens):
            raise ConfigError(
                f"{type(self.objective).__name__} declares needs.minibatch, but has no `keep`: define "
                "`keep`, which chooses the terms that stay, or leave needs.minibatch out"
            )
        self._check_critic()
        self._check_centre()
        self._check_penalties()

    def _check_penalties(self) -> None:
        for penalty in getattr(self.objective, "penalties", ()):
            if isinstance(penalty, ReferenceKL) and penalty.kind is KL.K1:
                raise ConfigError(
                    "ReferenceKL with k1 has no effect: the expected gradient of log q - log "
                    "reference is zero. In a loss choose k2 or k3; k1 belongs into rewards "
                    "(Returns or GAE with kl)"
                )

    def _check_critic(self) -> None:
        reads_values = needs_of(self.advantages, self.objective).values
        if reads_values and self.critic is None:
            raise ConfigError(
                "critic = None, and the advantages or the objective read values: give a Critic, or "
                "an estimator without one (Returns, GroupRelative)"
            )
        if self.critic is None:
            return
        if not reads_values:
            raise ConfigError(
                "no part reads the values of the critic: leave critic out, or take GAE as the estimator"
            )
        if not gives_returns(self.advantages):
            raise ConfigError(
                f"{type(self.advantages).__name__} has no returns for the critic to learn: take GAE, "
                "or return Estimate(returns=...)"
            )

    def _check_centre(self) -> None:
        if self.proximal is not Proximal.BEHAVIOUR:
            return
        if needs_of(self.objective).minibatch:
            raise ConfigError(
                'proximal = "behaviour" makes every log-weight 0, so a screen of log-weights keeps '
                'everything: choose "recompute" or "interpolate"'
            )
        weight = getattr(self.objective, "weight", None)
        if weight is not None and not isinstance(weight, NoWeight):
            raise ConfigError(
                'proximal = "behaviour" centres the trust region on the sampler, so a weight '
                "between the two is always 1: give NoWeight(), or another centre"
            )

    @property
    def needs(self) -> Needs:
        """The needs of all parts together. A critic learns from every trained token."""
        needs = needs_of(self.advantages, self.objective)
        if self.critic is not None:
            needs |= Needs(coverage=Coverage.ALL)
        return needs

    @property
    def learns_alone(self) -> bool:
        """Whether episodes without siblings teach anything."""
        return learns_alone(self.advantages)

    @property
    def idle_groups(self) -> IdleGroups:
        """The kind of groups that teach nothing, judged by their rewards before shaping.

        This follows DAPO: a solved group is replaced although its longest answer may lose a little by shaping.
        Otherwise a soft limit of length would keep every group, whatever its rewards.
        """
        return idle_groups(self.advantages)
