"""Draw what a run showed in the terminal as an SVG: `python scripts/picture.py RUN OUT.svg`.

Everything is read from the run directory: the live view as it was last painted, and the evaluations
before and after.
"""

import html
import re
import sys
from pathlib import Path

from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live import LiveState, render

WIDTH, LINE, MARGIN = 92, 19, 18
COLORS = {"1": "#ffffff", "2": "#8b949e", "32": "#56d364", "31": "#ff7b72"}
SPAN = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m|([^\x1b]+)")


def screen(run: RunDir, command: str) -> list[str]:
    """The lines of the terminal, with their colours."""
    lines = [f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m"]
    evaluations = run.read_metrics(kind="eval")
    lines += [_evaluation(row) for row in evaluations if row["name"] == "before"]
    live = run.read_live()
    assert live is not None, "the run has shown nothing yet"
    lines += ["", *render(LiveState.from_json(live), width=WIDTH, color=True), ""]
    lines += [_evaluation(row) for row in evaluations if row["name"] == "after"]
    return [*lines, "", f"run directory: runs/{run.path.name}"]


def _evaluation(row: dict[str, object]) -> str:
    return (
        f"{row['name']}: {row['split']}: success \x1b[1m{row['success']:.3f}\x1b[0m "
        f"[{row['success_low']:.3f}, {row['success_high']:.3f}], {row['tasks']:.0f} tasks"
    )


def to_svg(lines: list[str]) -> str:
    height = LINE * len(lines) + 2 * MARGIN
    width = int(WIDTH * 8.45) + 2 * MARGIN
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE * (i + 0.75):.0f}" xml:space="preserve">'
        f"{_spans(line)}</text>"
        for i, line in enumerate(lines)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="A training run in a terminal">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" '
        f'font-size="14" fill="#c9d1d9">\n{chr(10).join(rows)}\n</g>\n</svg>\n'
    )


def _spans(line: str) -> str:
    return "".join(
        f'<tspan fill="{COLORS[style]}">{html.escape(text)}</tspan>'
        if style
        else html.escape(plain)
        for style, text, plain in SPAN.findall(line)
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    run, out = RunDir.open(Path(arguments[0])), Path(arguments[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(to_svg(screen(run, "make demo")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
