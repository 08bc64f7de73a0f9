"""A panel as inline SVG: axes, curves and intervals, drawn here so that a report needs nothing else."""

import itertools
import math
from collections.abc import Sequence
from html import escape

from areal_sdk.records.curves import Panel, Point, Series

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 40
NUM_TICKS = 4
MOST_OF_NUMBER = 6
"""Maximum number of characters of a number at an axis."""
MAX_POINTS = 300
"""Largest number of points of a curve. Longer curves are averaged: a report of ten thousand steps stays small."""


def draw(panel: Panel) -> str:
    """The panel as an `<svg>`. Series have the classes `s0`, `s1`: the page gives them colours."""
    series = [_thinned(one) for one in panel.series]
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    ys += [value for one in series for _, low, high in one.band for value in (low, high)]
    x_ticks, y_ticks = _ticks(min(xs), max(xs), whole=True), _ticks(min(ys), max(ys))
    place = _Place(x_ticks, y_ticks)
    parts = [*_grid(place, x_ticks, y_ticks)]
    for number, one in enumerate(series):
        parts += _curve(one, number, place, dots=panel.is_measured)
    parts += _legend([one.label for one in panel.series])
    label = escape(panel.title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


class _Place:
    """The map from values to pixels."""

    def __init__(self, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
        self._x0, self._x1 = x_ticks[0], x_ticks[-1]
        self._y0, self._y1 = y_ticks[0], y_ticks[-1]

    def x(self, value: float) -> float:
        share = (value - self._x0) / (self._x1 - self._x0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self._y0) / (self._y1 - self._y0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """A few round numbers, from at most `low` to at least `high`.

    >>> _ticks(1e-14, 8e-14)[-1]
    8e-14
    >>> _ticks(0.0, 0.83), _ticks(1, 40, whole=True), _ticks(3.0, 3.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0, 10, 20, 30, 40], [2.8, 3.0, 3.2])
    """
    span = (high - low) or abs(high) / 4 or 1.0
    rough = span / NUM_TICKS
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    digits = 2 - exponent  # those of a step, however small: equal ticks would have no distance
    return [round(n * step, digits) for n in range(first, last + 1)]


def _grid(place: _Place, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in y_ticks:
        y = place.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5}" class="end">{_number(value)}</text>')
    for value in x_ticks:
        parts.append(
            f'<text x="{place.x(value)}" y="{bottom + 14}" class="middle">{_number(value)}</text>'
        )
    return parts


def _curve(series: Series, number: int, place: _Place, *, dots: bool) -> list[str]:
    colour = f"s{number}"
    parts = []
    if len(series.band) > 1:
        lows = [f"{place.x(x)},{place.y(low)}" for x, low, _ in series.band]
        highs = [f"{place.x(x)},{place.y(high)}" for x, _, high in reversed(series.band)]
        parts.append(f'<polygon class="band {colour}" points="{" ".join([*lows, *highs])}"/>')
    points = " ".join(f"{place.x(x)},{place.y(y)}" for x, y in series.points)
    parts.append(f'<polyline class="line {colour}" points="{points}"/>')
    if dots or len(series.points) == 1:
        parts += [
            f'<circle class="dot {colour}" cx="{place.x(x)}" cy="{place.y(y)}" r="3">'
            f"<title>step {_number(x)}: {_number(y)}</title></circle>"
            for x, y in series.points
        ]
    return parts


def _legend(labels: Sequence[str]) -> list[str]:
    """The labels below the axis, one beside the other; cut if there is no room."""
    width = (WIDTH - LEFT - RIGHT) / len(labels)
    parts, y = [], HEIGHT - 6
    for number, label in enumerate(labels):
        x = LEFT + number * width
        text = label[: max(4, int(width / 6) - 3)]
        parts.append(f'<rect class="mark s{number}" x="{x}" y="{y - 8}" width="8" height="8"/>')
        parts.append(f'<text x="{x + 12}" y="{y}">{escape(text)}</text>')
    return parts


def _thinned(series: Series) -> Series:
    count = len(series.points)
    if count <= MAX_POINTS:
        return series
    edges = [round(i * count / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    chunks = (series.points[a:b] for a, b in itertools.pairwise(edges))
    return Series(series.label, tuple(_middle(chunk) for chunk in chunks))


def _middle(points: Sequence[Point]) -> Point:
    count = len(points)
    return sum(x for x, _ in points) / count, sum(y for _, y in points) / count


def _number(value: float) -> str:
    """A number at an axis, as short as possible.

    >>> _number(0.25), _number(1200.0), _number(0.00075), _number(0.0)
    ('0.25', '1200', '7.5e-4', '0')
    """
    plain = f"{value:.4g}"
    if len(plain) <= MOST_OF_NUMBER:
        return plain
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"
