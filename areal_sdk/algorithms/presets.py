"""Algorithms by name: each a combination of small specs. Add one by writing a combination."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from areal_sdk.algorithms.advantages import AdvantageEstimator, GroupRelative, RunningBaseline
from areal_sdk.algorithms.losses import ClippedSurrogate, ImportanceWeight, Objective
from areal_sdk.algorithms.proximal import Proximal
from areal_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Algorithm:
    """From rewards to a gradient."""

    advantages: AdvantageEstimator
    objective: Objective
    proximal: Proximal = Proximal.RECOMPUTE


@dataclass(frozen=True, slots=True)
class Knobs:
    """What `[algorithm]` sets on any preset that has it."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    max_weight: float = 5.0
    proximal: Proximal = Proximal.RECOMPUTE


def grpo(knobs: Knobs) -> Algorithm:
    """Group-relative advantages, decoupled clipped surrogate, no KL term."""
    return Algorithm(GroupRelative(), _surrogate(knobs), knobs.proximal)


def running_baseline(knobs: Knobs) -> Algorithm:
    """For callers that come alone (`areal-sdk serve`): no siblings to compare with."""
    return Algorithm(RunningBaseline(), _surrogate(knobs), knobs.proximal)


def _surrogate(knobs: Knobs) -> Objective:
    return ClippedSurrogate(
        knobs.clip_low, knobs.clip_high, ImportanceWeight(maximum=knobs.max_weight)
    )


PRESETS: Mapping[str, Callable[[Knobs], Algorithm]] = {
    "grpo": grpo,
    "running_baseline": running_baseline,
}


def make_algorithm(name: str, knobs: Knobs | None = None) -> Algorithm:
    """The preset `name`, or the one that `"module:function"` names.

    >>> make_algorithm("grpo").objective.clip_high
    0.28
    >>> make_algorithm("gpro")
    Traceback (most recent call last):
        ...
    areal_sdk.errors.ConfigError: unknown algorithm 'gpro': did you mean 'grpo'?
    """
    preset = _imported(name) if ":" in name else PRESETS.get(name)
    if preset is None:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PRESETS)}"
        raise ConfigError(f"unknown algorithm {name!r}: {hint}")
    return preset(knobs or Knobs())


def _imported(reference: str) -> Callable[[Knobs], Algorithm]:
    module, _, attribute = reference.partition(":")
    try:
        return cast(Callable[[Knobs], Algorithm], getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"algorithm {reference!r}: {exc}") from exc
