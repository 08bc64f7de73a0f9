"""Draws a run as one SVG: reward by training time, held-out success before and after.

python scripts/draw_run.py runs/NAME docs/images/demo.svg
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from areal_sdk.telemetry import RunDir

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 56, 44
INK, FAINT, CURVE, GOOD = "#c9d1d9", "#6e7681", "#58a6ff", "#3fb950"

Point = tuple[float, float]


def draw(run: RunDir) -> str:
    config, steps = run.read_config(), run.read_steps()
    rewards = [(s["train_seconds"], s["batch/reward"]) for s in steps if "batch/reward" in s]
    seconds = max((x for x, _ in rewards), default=1.0)
    evals = [e for e in run.read_metrics(kind="eval") if "success" in e and e["split"] == "eval"]
    lines = [*_frame(seconds), *_curve(rewards, seconds), *_success(evals)]
    title = f"{Path(config.get('agent', '')).name} on {config.get('model')}: {len(steps)} steps"
    lines.append(_text(LEFT, 28, title, color=INK, size=15))
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#0d1117"/>\n{body}\n</svg>\n'
    )


def _frame(seconds: float) -> Iterator[str]:
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = _place(0.0, value, seconds)
        yield _line([(LEFT, y), (WIDTH - RIGHT, y)], FAINT, width=0.5)
        yield _text(LEFT - 8, y + 4, f"{value:g}", anchor="end")
    for share in (0.0, 0.5, 1.0):
        x, _ = _place(seconds * share, 0.0, seconds)
        anchor = "end" if share == 1.0 else "middle"
        yield _text(x, HEIGHT - BOTTOM + 20, f"{seconds * share:.0f} s", anchor=anchor)
    yield _text(LEFT, TOP - 10, "reward of each batch, smoothed over 5", color=CURVE)


def _curve(rewards: Sequence[Point], seconds: float) -> Iterator[str]:
    places = [_place(x, y, seconds) for x, y in rewards]
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="{FAINT}"/>' for x, y in places)
    window = [[y for _, y in rewards[max(0, i - 4) : i + 1]] for i in range(len(rewards))]
    smooth = [(x, sum(w) / len(w)) for (x, _), w in zip(rewards, window, strict=True)]
    if len(smooth) > 1:
        yield _line([_place(x, y, seconds) for x, y in smooth], CURVE, width=2.2)


def _success(evals: Sequence[dict[str, float]]) -> Iterator[str]:
    """The success before and after as bars with their 95 % intervals, right of the curve."""
    if not evals:
        return
    yield _text(WIDTH - RIGHT + 20, 28, "held-out success", color=GOOD)  # above the values of bars
    for index, (when, found) in enumerate((("before", evals[0]), ("after", evals[-1]))):
        x = WIDTH - RIGHT + 44 + 52 * index
        _, zero = _place(0.0, 0.0, 1.0)
        _, top = _place(0.0, found["success"], 1.0)
        _, low = _place(0.0, found["success_low"], 1.0)
        _, high = _place(0.0, found["success_high"], 1.0)
        yield (
            f'<rect x="{x - 14}" y="{top:.1f}" width="28" height="{zero - top:.1f}" '
            f'fill="{GOOD}" opacity="0.75"/>'
        )
        yield _line([(x, low), (x, high)], INK, width=1.5)
        yield _text(x, min(top, high) - 6, f"{found['success']:.2f}", color=INK, anchor="middle")
        yield _text(x, HEIGHT - BOTTOM + 20, when, anchor="middle")


def _place(seconds: float, value: float, total: float) -> Point:
    x = LEFT + (WIDTH - LEFT - RIGHT) * (seconds / total if total else 0.0)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, max(0.0, value))


def _line(points: Sequence[Point], color: str, *, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def _text(
    x: float, y: float, text: str, *, color: str = FAINT, size: int = 12, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(RunDir.open(Path(sys.argv[1]))))
    print(f"wrote {target}")
