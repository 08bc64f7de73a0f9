"""A run in the cell of a notebook: its status and its reward curve, repainted in place."""

import sys
from collections.abc import Callable
from html import escape
from typing import Any, Protocol

from areal_sdk.records.curves import Panel, Series
from areal_sdk.records.svg import draw
from areal_sdk.telemetry.live.terminal import RunStatus, StatusWriter, TerminalView, render

LINE_WIDTH = 100
REPAINT_S = 2.0
"""Seconds between two repaints. A status is taken twice a second, and a distant browser need not get all of them."""

_STYLE = """<style>
.areal-run svg { display: block; width: 420px; max-width: 100%; }
.areal-run svg text { fill: currentColor; font: 11px system-ui, sans-serif; }
.areal-run svg .end { text-anchor: end; } .areal-run svg .middle { text-anchor: middle; }
.areal-run svg .grid { stroke: #8884; }
.areal-run svg .line { fill: none; stroke-width: 1.8; }
.areal-run .s0 { stroke: #2a6fdb; fill: #2a6fdb; }
</style>"""


class Shown(Protocol):
    """A display in a cell that can be replaced."""

    def update(self, page: Any) -> None: ...


class NotebookView:
    """Shows a run's status in a cell. `show` displays a page of HTML for the first time."""

    repaints = True

    def __init__(self, show: Callable[[str], Shown], page: Callable[[str], Any] = str) -> None:
        self._show = show
        self._page = page
        self._shown: Shown | None = None
        self._state: RunStatus | None = None
        self._painted_s = 0.0

    def update(self, state: RunStatus) -> None:
        """Show `state`, unless the last painting was less than `REPAINT_S` ago."""
        self._state = state
        if self._shown is None or state.elapsed_s - self._painted_s >= REPAINT_S:
            self._paint(state)

    def message(self, text: str) -> None:
        """Print a line that stays, below the view."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a cell's own output

    def close(self) -> None:
        """Leave the last state in the cell."""
        if self._state is not None:
            self._paint(self._state)

    def _paint(self, state: RunStatus) -> None:
        html = status_page(state)
        if self._shown is None:
            self._shown = self._show(html)
        else:
            self._shown.update(self._page(html))
        self._painted_s = state.elapsed_s


def status_page(state: RunStatus) -> str:
    """The lines of the view in a terminal, and the reward of each step as a curve."""
    lines = escape("\n".join(render(state, width=LINE_WIDTH)))
    first = state.step - len(state.rewards) + 1
    points = tuple(
        (float(step), reward)
        for step, reward in enumerate(state.rewards, start=first)
        if reward is not None
    )
    curve = draw(Panel("training reward", (Series("reward", points),))) if points else ""
    return f'<div class="areal-run">{_STYLE}<pre>{lines}</pre>{curve}</div>'


def status_writer() -> StatusWriter:
    """The view for this process: a notebook's cell, else stderr."""
    return _in_notebook() or TerminalView(sys.stderr)


def _in_notebook() -> NotebookView | None:
    """None unless this process is the kernel of a notebook, which has IPython imported already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    return NotebookView(lambda html: display(HTML(html), display_id=True), HTML)
