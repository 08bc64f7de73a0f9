"""The figures of steps by which a run is judged, and the bounds beyond which something is missing.

Pure functions over `step` events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import Any

from areal_sdk.records.diagnosis.cures import CUT, SOLVED

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The figures beyond which something is missing. Tests compare them with recorded runs."""

    few_groups: int = 16
    """Number of groups below which there is no verdict."""
    few_steps: int = 8
    """Number of steps below which the verdict only covers signal and gradient."""
    many_steps: int = 20
    """Number of steps without a gain after which the rewards may be chance."""
    differing: float = 0.1
    """Share of the groups whose rewards differ, below which there is no signal even in the best part of a run."""
    updating: float = 0.5
    """Share of the steps with differing rewards that made an update, below which there is no gradient."""
    still: float = 1e-4
    """Median KL of the steps, in nats a token, below which the policy hardly moves, unless many steps add up."""
    near: float = 0.3
    """KL of all steps together, in nats a token, if they all go one way: above it, small steps add up to a move."""
    jump: float = 0.3
    """KL of a single step, in nats a token, above which the policy jumped."""
    cut: float = CUT
    """Share of the episodes that ran into a limit, or got no reward, above which episodes have no room."""
    stale: float = 0.3
    """Share of the episodes that are dropped for their age, above which samples are too old."""
    effective: float = 0.5
    """Median of the effective share of the trained samples (`train/ess`), below which samples are too old."""
    solved: float = SOLVED
    """Success from which there is nothing left to learn."""


BOUNDS = Bounds()


def differing(step: Step) -> float | None:
    """The share of groups whose rewards differ; without siblings, the share of tokens that have an advantage.

    None if the step has neither figure.
    """
    groups = step["batch/groups"]
    if step.get("batch/episodes", 0) > groups and "batch/uniform_groups" in step:
        return float(1.0 - step["batch/uniform_groups"] / groups)
    idle = step.get("train/share_without_advantage")
    return None if idle is None else float(1.0 - idle)


def is_still(kls: Sequence[float]) -> bool:
    """Whether steps of these KLs hardly move the policy, each alone and all together."""
    reach = sum(map(sqrt, kls)) ** 2  # a KL grows with the square of a distance
    return median(kls) < BOUNDS.still and reach < BOUNDS.near


def moved(step: Step) -> float | None:
    """The KL by which a step moved the policy; None if the step made no update, or does not tell.

    Without a measurement, the KL to the sampler stands for it, provided that samples are older than the weights.
    """
    if not step.get("train/num_updates"):
        return None
    if (kl := step.get("train/kl_step")) is not None:
        return float(kl)
    age, kl = step.get("train/staleness_mean", 0.0), step.get("train/kl_behaviour")
    return float(kl / max(1.0, age) ** 2) if age >= 0.5 and kl is not None else None


def mean_of(steps: Sequence[Step], name: str) -> float | None:
    """The mean of a metric over the steps that have it; None if none has."""
    values = [step[name] for step in steps if step.get(name) is not None]
    return fmean(values) if values else None
