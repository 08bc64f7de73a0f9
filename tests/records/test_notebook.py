"""A run in the cell of a notebook. With a real kernel by hand; here the cell is a list of its pages."""

from areal_sdk.records.notebook import REPAINT_S, NotebookView, status_page, status_writer
from areal_sdk.telemetry.live.terminal import RunStatus, TerminalView


class Cell:
    """Keeps every page that it showed."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def show(self, page: str) -> "Cell":
        self.pages.append(page)
        return self

    def update(self, page: str) -> None:
        self.pages.append(page)


def status(step: int, elapsed_s: float, rewards: tuple[float | None, ...] = ()) -> RunStatus:
    return RunStatus(
        name="Agent on tiny", step=step, total_steps=9, elapsed_s=elapsed_s, rewards=rewards
    )


def test_the_page_has_the_lines_of_the_view_and_the_curve_of_the_rewards() -> None:
    page = status_page(status(7, 30.0, (0.25, None, 0.75)))
    assert "Agent on tiny  step 7/9" in page
    assert 'aria-label="training reward"' in page
    assert ">5</text>" in page  # the first of three steps
    assert ">7</text>" in page


def test_a_page_without_a_step_has_no_curve_and_no_markup_of_others() -> None:
    page = status_page(RunStatus(name="<script>", total_steps=9, rewards=(None,)))
    assert "<svg" not in page
    assert "<script>" not in page


def test_a_cell_is_repainted_now_and_then_and_ends_with_the_last_state() -> None:
    cell = Cell()
    view = NotebookView(cell.show)
    view.update(status(1, 0.0))
    view.update(status(2, REPAINT_S / 2))
    view.update(status(3, REPAINT_S))
    view.update(status(4, REPAINT_S * 1.5))
    view.close()
    shown = [page.partition("step ")[2][:3] for page in cell.pages]
    assert shown == ["1/9", "3/9", "4/9"]


def test_outside_of_a_notebook_the_view_is_the_terminals() -> None:
    assert isinstance(status_writer(), TerminalView)
