"""The certificate of a judge that reads users' next messages: how far it agrees with thumbs that users gave."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from areal_sdk import ConfigError
from areal_sdk.records import wilson
from areal_sdk_judge.agreement import kappa_of

MIN_KAPPA = 0.4
"""Least agreement beyond chance. If nearly all thumbs are up, a judge that always says yes agrees with nearly all."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The comparison of a judge with thumbs."""

    base_url: str
    model: str
    min_agreement: float
    """The share that was asked for. The lower end of the interval of `agreement` must reach it."""
    num_thumbs: int
    """Thumbs on something that the user then answered."""
    num_judged: int
    """The number of thumbs for which the judge found the next message clear."""
    num_agreed: int
    agreement: tuple[float, float, float]
    """Share of the verdicts that agree with the thumb, with its 95 % interval."""
    abstained: tuple[float, float, float]
    """Share of the thumbs without a verdict, with its 95 % interval."""
    kappa: float | None
    """None if all thumbs and verdicts are on one side."""

    @property
    def shortfall(self) -> str:
        """The reason why this judge is not to be trained on; empty if there is none."""
        if not self.num_judged:
            return "no verdict can be compared with a thumb"
        if self.kappa is None:
            return "all thumbs and verdicts are on one side, so agreement says nothing"
        if self.kappa < MIN_KAPPA:
            return f"its agreement beyond chance (kappa) is {self.kappa:.2f}, below {MIN_KAPPA}"
        value, low, _ = self.agreement
        if low < self.min_agreement:
            return (
                f"it agrees with {value:.2f} of the thumbs, and with 95 % confidence only with {low:.2f} or more, below "
                f"min_agreement = {self.min_agreement:g}"
            )
        return ""

    def lines(self) -> Sequence[str]:
        agreement, abstained = (
            f"{value:.2f} [{low:.2f}, {high:.2f}]"
            for value, low, high in (self.agreement, self.abstained)
        )
        kappa = "none: all on one side" if self.kappa is None else f"{self.kappa:.2f}"
        return (
            f"thumbs with a next message  {self.num_thumbs}",
            f"judge abstained             {abstained}",
            f"agreement                   {agreement} ({self.num_agreed} of {self.num_judged})",
            f"beyond chance (kappa)       {kappa}",
        )


def certificate_of(
    pairs: Sequence[tuple[float | None, bool]],
    *,
    base_url: str,
    model: str,
    min_agreement: float,
) -> Certificate:
    """The certificate of verdicts (1, 0, or None for none), each with whether the thumb was up."""
    judged = [(verdict == 1.0, thumb) for verdict, thumb in pairs if verdict is not None]
    num_agreed = sum(verdict == thumb for verdict, thumb in judged)
    kappa = kappa_of([(int(verdict), int(thumb)) for verdict, thumb in judged])
    return Certificate(
        base_url,
        model,
        min_agreement,
        len(pairs),
        len(judged),
        num_agreed,
        _share(num_agreed, len(judged)),
        _share(len(pairs) - len(judged), len(pairs)),
        None if math.isnan(kappa) else kappa,
    )


def write_certificate(path: Path, certificate: Certificate) -> None:
    path.write_text(json.dumps(asdict(certificate), indent=2) + "\n", encoding="utf-8")


def read_certificate(path: Path) -> Certificate:
    """The certificate of a judge that may be trained on. ConfigError if there is none, or if the judge may not."""
    cure = f"`areal-sdk judge-messages RUN --output {path} ...` compares a judge with thumbs"
    try:
        found = Certificate(**json.loads(path.read_text(encoding="utf-8")))
        shortfall = found.shortfall
    except OSError:
        raise ConfigError(f"reward.next_message.agreement: {path} is not there: {cure}") from None
    except (ValueError, TypeError):
        raise ConfigError(
            f"reward.next_message.agreement: {path} is no certificate: {cure}"
        ) from None
    if shortfall:
        raise ConfigError(
            f"reward.next_message.agreement: the judge {found.model!r} is not to be trained on: {shortfall}; take another "
            "judge, or collect more thumbs"
        )
    return found


def _share(count: int, total: int) -> tuple[float, float, float]:
    if not total:
        return 0.0, 0.0, 1.0
    found = wilson(count, total)
    return found.value, found.low, found.high
