"""The distance of plans from published figures, and the share of cases in which the stated doubt
held."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from plan_fit import HALVES, KINDS, SHARE, factor_of, half_of, holds, measured_factor
from plan_published import PUBLISHED, Figure, predictions
from tables import table

from areal_sdk_plan.hardware import Efficiencies
from areal_sdk_plan.sureness import MEASURED_FACTOR, TABLE_FACTOR

Fits = Mapping[str, Mapping[str, float]]
"""Constants by what was left out of their fit; "all": nothing."""
Verdict = tuple[Figure, Figure, Figure, bool]
"""A figure with the constants of the planner, of the other half of the rows, of the other sources; and whether the
last is within a doubt that those other sources state."""


def verdicts(fits: Fits) -> list[Verdict]:
    made = {name: predictions(replace(Efficiencies(), **fit)) for name, fit in fits.items()}
    shipped = predictions(Efficiencies())
    halves = [made[half_of(figure)][index] for index, figure in enumerate(shipped)]
    without = [made[figure.source][index] for index, figure in enumerate(shipped)]
    stated = {
        source: factor_of([figure for figure in without if figure.source != source])
        for source in PUBLISHED["sources"]
    }
    held = [holds(figure, stated[figure.source]) for figure in without]
    return list(zip(shipped, halves, without, held, strict=True))


def published_tables(fits: Fits) -> str:
    found = verdicts(fits)
    without = [verdict[2] for verdict in found]
    header = (
        "figures",
        "number",
        "median error",
        "doubt held",
        "left-out rows: median error",
        "doubt held",
        "left-out source: median error",
        "doubt held",
    )
    return "\n\n".join(
        (
            table(header, [_summary(name, chosen) for name, chosen in _grouped(found)]),
            f"The stated doubt is a factor of {TABLE_FACTOR:.2f}: {SHARE:.0%} of the figures of sources left out are within "
            f"{factor_of(without):.2f}, where sources count alike. In the last column each source is judged by the "
            "factor of the others. With one measured step of the same model and mode the stated doubt is "
            f"{MEASURED_FACTOR:.2f}: {SHARE:.0%} of such pairs are within {measured_factor(without):.2f}.",
            "Each figure, with the constants of the planner and (left out) with those fitted to the other sources:",
            table(
                ("source", "run", "figure", "published", "predicted", "off by", "left out", "held"),
                [_row(verdict) for verdict in found],
            ),
        )
    )


def _grouped(found: Sequence[Verdict]) -> Iterator[tuple[str, Sequence[Verdict]]]:
    yield "all", found
    for source in PUBLISHED["sources"]:
        yield source, [verdict for verdict in found if verdict[0].source == source]
    for kind in KINDS:
        yield f"kind: {kind}", [verdict for verdict in found if verdict[0].kind == kind]
    for half in HALVES:
        yield half, [verdict for verdict in found if half_of(verdict[0]) == half]


def _summary(name: str, chosen: Sequence[Verdict]) -> Sequence[str]:
    shipped = [verdict[0] for verdict in chosen]
    halves = [verdict[1] for verdict in chosen]
    without = [verdict[2] for verdict in chosen]
    held_outside = sum(verdict[3] for verdict in chosen) / len(chosen)
    return (
        name,
        str(len(chosen)),
        _median(shipped),
        f"{_share(shipped):.0%}",
        _median(halves),
        f"{_share(halves):.0%}",
        _median(without),
        f"{held_outside:.0%}",
    )


def _median(figures: Sequence[Figure]) -> str:
    return f"x {math.exp(statistics.median(abs(figure.error) for figure in figures)):.2f}"


def _share(figures: Sequence[Figure]) -> float:
    return sum(holds(figure, TABLE_FACTOR) for figure in figures) / len(figures)


def _row(verdict: Verdict) -> Sequence[str]:
    shipped, _, without, held = verdict
    return (
        shipped.source,
        shipped.row,
        shipped.name,
        f"{shipped.published:,.4g}",
        f"{shipped.predicted:,.4g}",
        _off(shipped),
        _off(without),
        "yes" if held else "no",
    )


def _off(figure: Figure) -> str:
    if figure.whole:
        return f"{math.expm1(figure.error):+.0%} of the step"
    return f"{figure.predicted / figure.published - 1.0:+.0%}"
