"""The lines that tell users of trouble with a step, each kind once a run."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.step.trust_region import PER_TOKEN

EXPLAINED = {"float32": 2e-3, "bfloat16": 0.1}
"""Mean |log p - log b| at lag 0 that rounding explains. The least precise of both sides counts.

SmolLM2 in bfloat16 has 0.03 to 0.06 in a step of 150 to 500 tokens."""

FAR = 0.5
"""KL to the sampler, in nats a token, that runs seldom survive (`benchmarks/convergence_command.py`)."""
NEAR = 0.03
"""KL below which a jump gets no notice, however small the KL was before."""
JUMP = 20.0
"""Factor by which the KL must exceed the median of the steps before. A mean over tokens hides the few that decide an
answer: a policy forgot everything in three steps at 0.003, 0.069 and 0.087, where 0.0025 was usual."""
REMEMBERED = 20
"""Number of steps of the median, of which at least a quarter must exist."""


class Notices:
    """Notices that users get about the steps of a run."""

    def __init__(self, settings: TrainerSection, publish_dtype: str) -> None:
        self.latest: list[str] = []
        """Notices of the latest step."""
        self._dtypes = (settings.precision, publish_dtype)
        self._named: set[str] = set()
        self._distances = Distances(is_bounded=settings.trust_region > 0.0)

    def begin(self, outliers: Mapping[str, str]) -> None:
        """Begin the notices of a step with the sources that posted an outlying reward. Each source is named once."""
        self.latest = []
        for source, what in outliers.items():
            self._tell(source, f"{source}: {what}" if source else what)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the notices that the figures of the step call for."""
        self._tell("disagreement", disagreement_notice(metrics, self._dtypes))
        self._tell("moved", self._distances.notice(metrics))

    def _tell(self, kind: str, notice: str | None) -> None:
        if notice is not None and kind not in self._named:
            self.latest.append(notice)
            self._named.add(kind)


def disagreement_notice(metrics: Mapping[str, float], dtypes: Sequence[str]) -> str | None:
    """The line for the user if engine and trainer disagree under the same weights."""
    found = metrics.get("dlogp_lag_0")
    explained = max(EXPLAINED[dtype] for dtype in dtypes)
    if found is None or not found > explained:
        return None
    return (
        f"generation and training disagree: under the same weights the logprobs of sampled tokens "
        f"differ by {found:.3g} on average, where rounding explains {explained:g}. Run areal-sdk "
        "doctor model, compare engine.dtype with trainer.precision, and leave out engine options "
        'that change samples (kv_on_update = "keep", a quantized cache)'
    )


@dataclass(slots=True)
class Distances:
    """Distances of the policy from the policies that sampled, after each of the last steps."""

    is_bounded: bool = False
    """Whether each update is held within the trust region."""
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def notice(self, metrics: Mapping[str, float]) -> str | None:
        """The line for the user if the policy ran away from its samples."""
        found = metrics.get("kl_behaviour_after")
        if found is None:
            return None
        usual = statistics.median(self._usual) if len(self._usual) >= REMEMBERED // 4 else math.inf
        self._usual.append(found)
        has_jumped = found > max(NEAR, JUMP * usual, self._allowed(metrics))
        return _moved(found, usual) if found > FAR or has_jumped else None

    def _allowed(self, metrics: Mapping[str, float]) -> float:
        """The KL that updates within the trust region reach together, if all go one way: it grows with the square."""
        if not self.is_bounded:
            return 0.0
        num_updates = metrics.get("staleness_max", 0.0) + metrics.get("num_updates", 1.0)
        return PER_TOKEN * num_updates**2


def _moved(found: float, usual: float) -> str:
    before = f" (the median before: {usual:.2g})" if usual < math.inf else ""
    return (
        f"after this step the policy is {found:.2g} nats a token away from the one that sampled{before}, which often ends in a "
        "policy that has forgotten everything: lower trainer.learning_rate, raise rollout.batch, or lower "
        "rollout.max_staleness and trainer.num_minibatches (eval.keep_best keeps the best weights so far)"
    )
