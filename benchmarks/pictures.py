"""Curves with intervals as a picture: panels two by two, and a legend below."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import resvg_py

PANEL_WIDTH, PANEL_HEIGHT, GAP, PER_ROW = 340, 240, 30, 2
LEFT, TOP, LEGEND_LINE, PER_LEGEND_LINE = 46, 64, 20, 4
ROW_HEIGHT = PANEL_HEIGHT + 66
"""A panel, what is written below it, and the title of the next."""
BACKGROUND, INK, FAINT = "#0d1117", "#c9d1d9", "#6e7681"
COLORS = (
    "#58a6ff",
    "#3fb950",
    "#f85149",
    "#d29922",
    "#bc8cff",
    "#39c5cf",
    "#ffffff",
    "#8b949e",
    "#7ee787",
    "#f778ba",
)

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve; `spread` is half the height of the interval around each of its points, if it has any."""

    name: str
    heights: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """Lines over the same places, which are drawn at even distances; heights are from 0 to 1."""

    title: str
    places: Sequence[str]
    """Text below each place; an empty text writes nothing."""
    lines: Sequence[Line]


def save(picture: str, path: Path) -> None:
    """The SVG at `path`, and beside it a PNG for readers that show no SVG."""
    path.write_text(picture)
    png = resvg_py.svg_to_bytes(svg_string=picture, zoom=2, monospace_family="DejaVu Sans Mono")
    path.with_suffix(".png").write_bytes(bytes(png))


def draw(title: str, panels: Sequence[Panel]) -> str:
    """An SVG. Lines of the same name have the same colour in every panel."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colors = {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}
    width = LEFT + min(len(panels), PER_ROW) * (PANEL_WIDTH + GAP)
    legend_top = TOP + ROW_HEIGHT * -(-len(panels) // PER_ROW)
    height = legend_top + LEGEND_LINE * -(-len(names) // PER_LEGEND_LINE)
    body = [_text(LEFT, 26, title, color=INK, size=15)]
    for index, panel in enumerate(panels):
        row, column = divmod(index, PER_ROW)
        left, top = LEFT + column * (PANEL_WIDTH + GAP), TOP + row * ROW_HEIGHT
        body += _panel(panel, left, top, colors)
    for index, name in enumerate(names):
        row, column = divmod(index, PER_LEGEND_LINE)
        x = LEFT + column * (width - LEFT) / PER_LEGEND_LINE
        y = legend_top + row * LEGEND_LINE
        body.append(_line([(x, y - 4), (x + 18, y - 4)], colors[name], width=2.2))
        body.append(_text(x + 24, y, name, color=INK))
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n{lines}\n</svg>\n'
    )


def _panel(panel: Panel, left: float, top: float, colors: dict[str, str]) -> Iterator[str]:
    def place(number: int, height: float) -> Point:
        x = left + PANEL_WIDTH * number / max(1, len(panel.places) - 1)
        return x, top + PANEL_HEIGHT * (1.0 - min(1.0, max(0.0, height)))

    yield _text(left, top - 12, panel.title)
    for height in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = place(0, height)
        yield _line([(left, y), (left + PANEL_WIDTH, y)], FAINT, width=0.5)
        if left == LEFT:
            yield _text(left - 6, y + 4, f"{height:g}", anchor="end")
    for number, name in enumerate(panel.places):
        x, y = place(number, 0.0)
        # The words at the ends stay inside their panel: beside it is another one.
        at_end = "end" if number == len(panel.places) - 1 else "middle"
        yield _text(x, y + 18, name, anchor="start" if number == 0 else at_end)
    for line in panel.lines:
        color = colors[line.name]
        if line.spread:
            pairs = list(zip(line.heights, line.spread, strict=True))
            upper = [place(number, y + s) for number, (y, s) in enumerate(pairs)]
            lower = [place(number, y - s) for number, (y, s) in enumerate(pairs)]
            yield (
                f'<polygon points="{_path([*upper, *reversed(lower)])}" fill="{color}" opacity="0.16"/>'
            )
        points = [place(number, height) for number, height in enumerate(line.heights)]
        yield _line(points, color, width=2.2)


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(points: Sequence[Point], color: str, *, width: float) -> str:
    return (
        f'<polyline points="{_path(points)}" fill="none" stroke="{color}" stroke-width="{width}"/>'
    )


def _text(
    x: float, y: float, text: str, *, color: str = FAINT, size: int = 12, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
