"""Colours as people see them: contrast, and distance, also to an eye without one kind of cone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colour = Sequence[int]
"""Red, green and blue, 0 to 255."""

EYES = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
"""Matrices from linear RGB to the linear RGB that looks the same to the eye: Machado, Oliveira and Fernandes, 2009."""
_TO_XYZ = np.array(
    (
        (0.4124564, 0.3575761, 0.1804375),
        (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    )
)
_WHITE = _TO_XYZ.sum(axis=1)


def contrast(one: Colour, other: Colour) -> float:
    """The ratio of WCAG 2.1, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def distance(one: Colour, other: Colour, *, eye: str) -> float:
    """The distance in CIELAB (CIE 1976) as `eye` sees the two: about 2 is just noticed, side by side."""
    return float(np.linalg.norm(_lab(one, eye) - _lab(other, eye)))


def of_hex(text: str) -> Colour:
    return [int(text[n : n + 2], 16) for n in (1, 3, 5)]


def _linear(colour: Colour) -> NDArray[np.float64]:
    value = np.array(colour) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _luminance(colour: Colour) -> float:
    return float(_TO_XYZ[1] @ _linear(colour))


def _lab(colour: Colour, eye: str) -> NDArray[np.float64]:
    seen = np.clip(np.array(EYES[eye]) @ _linear(colour), 0, 1)
    part = _TO_XYZ @ seen / _WHITE
    x, y, z = np.where(part > 216 / 24389, np.cbrt(part), (24389 / 27 * part + 16) / 116)
    return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))
