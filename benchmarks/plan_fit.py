"""The constants of the table of hardware, fitted to published figures, and tested on sources left out."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import numpy.typing as npt
from plan_published import PUBLISHED, Figure, predictions

from areal_sdk_plan.hardware import Efficiencies

PRIOR = {
    "arithmetic": 0.5,
    "traffic_bytes": 120.0,
    "bandwidth": 0.7,
    "layer_s": 2e-4,
    "request_s": 2e-5,
    "episode_s": 3e-3,
    "update_s": 1.0,
    "publish_gb_s": 2.0,
    "straggler": 0.02,
}
"""Fitted constants, each with the guess that a fit stays near where no figure tells."""
SPREAD = 0.5
"""Standard deviation of the logarithm of a constant around its guess."""
WEIGHT = 20.0
"""Figures that a source counts as."""
ROUNDS, ROUNDS_LEFT_OUT = 3, 3
STEP, FAR = 0.05, 0.7
"""Changes of logarithms: to see how errors change, and in one round at most."""
Floats = npt.NDArray[np.float64]


Chosen = Callable[[Figure], bool]
Note = Callable[[str], None]


def fits(note: Note) -> dict[str, Efficiencies]:
    """Constants fitted to all figures, to those of all other sources, and to those of the other half of the rows.

    Robust least squares over the logarithms of times; a source counts as much as any other. What is left
    out changes the constants a little: these fits begin at those of all, and keep how errors change there.
    """
    logs, slopes = np.log(list(PRIOR.values())), np.zeros((0, 0))
    for _ in range(ROUNDS):
        figures = predictions(_made(logs))
        found = _errors(figures)
        moved = (logs + STEP * row for row in np.eye(len(logs)))
        slopes = np.stack(
            [(_errors(predictions(_made(at))) - found) / STEP for at in moved], axis=1
        )
        logs = _solved(figures, slopes, logs, lambda _: True)
        note(f"all: {described(_made(logs))}")
    tests = {source: _not_from(source) for source in PUBLISHED["sources"]}
    tests |= {half: _not_in(half) for half in HALVES}
    made = {"all": logs}
    for name, chosen in tests.items():
        made[name] = logs
        for _ in range(ROUNDS_LEFT_OUT):
            made[name] = _solved(predictions(_made(made[name])), slopes, made[name], chosen)
        note(f"without {name}: {described(_made(made[name]))}")
    return {name: _made(logs) for name, logs in made.items()}


def _solved(figures: Sequence[Figure], slopes: Floats, logs: Floats, chosen: Chosen) -> Floats:
    """The constants with the least cost, if errors change in proportion to them."""
    counts = Counter(figure.source for figure in figures if chosen(figure))
    shares = [math.sqrt(WEIGHT / counts[f.source]) if chosen(f) else 0.0 for f in figures]
    found, slopes = np.array(shares) * _errors(figures), np.array(shares)[:, None] * slopes
    offset = logs - np.log(list(PRIOR.values()))
    change: Floats = np.zeros(len(logs))
    for _ in range(50):  # errors that stand out count less
        weights = 1.0 / np.sqrt(1.0 + (found + slopes @ change) ** 2)
        normal = slopes.T @ (weights[:, None] * slopes) + np.eye(len(logs)) / SPREAD**2
        pull = slopes.T @ (weights * found) + offset / SPREAD**2
        change = np.asarray(-np.linalg.solve(normal, pull), dtype=np.float64)
    return logs + np.clip(change, -FAR, FAR)


def _errors(figures: Sequence[Figure]) -> Floats:
    return np.array([figure.error for figure in figures])


def _made(logs: Floats) -> Efficiencies:
    """Constants of three digits, and shares below 1."""
    values = {name: float(f"{v:.3g}") for name, v in zip(PRIOR, np.exp(logs), strict=True)}
    for name in ("arithmetic", "bandwidth"):
        values[name] = min(0.95, values[name])
    return replace(Efficiencies(), **values)


def described(efficiency: Efficiencies) -> str:
    return ", ".join(f"{name} {getattr(efficiency, name):.3g}" for name in PRIOR)


HALVES = ("even rows", "odd rows")


def half_of(figure: Figure) -> str:
    return HALVES[crc32(f"{figure.source} {figure.row}".encode()) % 2]


def _not_from(source: str) -> Chosen:
    return lambda figure: figure.source != source


def _not_in(half: str) -> Chosen:
    return lambda figure: half_of(figure) != half


# --- how far figures are off -----------------------------------------------------------------------

KINDS = ("step", "trainer", "generation", "weights")
SHARE = 0.95
"""Part of the figures of sources left out that a stated factor is made for."""


def factor_of(figures: Sequence[Figure]) -> float:
    """The factor that SHARE of the figures are within; sources count alike."""
    counts = Counter(figure.source for figure in figures)
    errors = sorted((abs(f.error), 1.0 / counts[f.source]) for f in figures)
    reached = 0.0
    for error, weight in errors:
        reached += weight
        if reached >= SHARE * len(counts) - 1e-9:
            return math.exp(error)
    raise AssertionError("there are figures")


def measured_factor(figures: Sequence[Figure]) -> float:
    """The factor for steps of a model once another of its steps, in the same source and mode, calibrates the plan."""
    steps = [
        f for f in figures if f.kind == "step" and (f.name == "step" or f.name.startswith("hours"))
    ]
    pairs = [
        replace(two, predicted=two.published * math.exp(two.error - one.error))
        for one in steps
        for two in steps
        if one.row != two.row and one.source == two.source and _model(one) == _model(two)
    ]
    return factor_of(pairs)


def _model(figure: Figure) -> tuple[str, bool, bool]:
    """The features that a measured step shares with the steps that it calibrates."""
    name = figure.row.partition(",")[0]
    return name, "tools" in figure.row, "taking turns" in figure.row


def holds(figure: Figure, factor: float) -> bool:
    return abs(figure.error) <= math.log(factor) + 1e-9
