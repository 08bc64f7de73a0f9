"""`report.html`: one page, whole in itself, in which what an agent said stays text."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.records.inspect import inspect
from areal_sdk.errors import ConfigError
from areal_sdk.records.curves import Panel, Series, panels_of
from areal_sdk.records.report import report_of
from areal_sdk.records.svg import MAX_POINTS, draw
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, RunDir
from areal_sdk.types import Episode, Outcome, Task, Turn

from .scripted import ATTACK, SETTINGS, write_run

VOID = {"meta", "line", "rect", "polyline", "polygon"}


class Page(HTMLParser):
    """The tags, attributes and text of a page; fails where a tag is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_figures_curves_episodes_and_settings(run: RunDir) -> None:
    page = Page(report_of(run))
    assert "calculator.py on smollm2 · grpo" in page.text
    assert "0.75held-out after" in page.text
    assert page.tags.count("svg") == len(panels_of(run)) == 10
    assert "reward 1, task t-6, train, trained in step 6, advantage +0.56" in page.text
    assert "What is 6 times ten?" in page.text
    assert "algorithm.namegrpo" in page.text


def test_a_run_that_never_called_a_tool_is_told_what_helps(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run")
    assert "never called" not in report_of(run)
    metrics = MetricsLog(run.metrics)
    offered = {"batch/offered_tools": 32.0, "batch/called_tools": 0.0}
    metrics.log("step", {"step": 7, "batch/reward": 0.0, **offered})
    metrics.close()
    assert "tools were offered in 32 episodes and never called: warm up with" in report_of(run)


def test_what_was_measured_before_training_is_not_shown_as_after_it(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", steps=2, success=None, ended=None)
    metrics = MetricsLog(run.metrics)
    evaluation = {"name": "before", "split": "eval", "step": 0, "success": 0.0, "reward": 0.0}
    metrics.log("eval", evaluation)
    page = Page(report_of(run)).text
    assert "0held-out before" in page
    assert "held-out after" not in page
    metrics.log("eval", {**evaluation, "name": "step-2", "step": 2, "success": 0.5})
    metrics.close()
    page = Page(report_of(run)).text
    assert "0held-out before" in page
    assert "0.5held-out after" in page


def test_length_limits_idle_groups_and_learning_rate_have_curves(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config(SETTINGS)
    metrics = MetricsLog(run.metrics)
    for step in (1, 2):
        of_batch = {"batch/sampled_tokens": 40.0 * step, "batch/truncated": 0.25, "batch/groups": 4}
        idle = {"train/num_idle_groups": 1.0, "train/learning_rate": 1e-5 / step}
        metrics.log("step", {"step": step, **of_batch, **idle})
    metrics.close()
    last = {panel.title: [one.points[-1][1] for one in panel.series] for panel in panels_of(run)}
    assert last == {
        "tokens sampled an episode": [80.0],
        "episodes that a limit ended": [0.25],
        "groups that taught nothing": [1.0, 4],
        "learning rate": [5e-6],
    }


def test_what_an_agent_said_is_inert(tmp_path: Path) -> None:
    settings = {**SETTINGS, "agent": ATTACK, "model": ATTACK, "algorithm": {ATTACK: ATTACK}}
    run = write_run(tmp_path, "run", settings=settings)
    call = {"function": {"name": ATTACK, "arguments": ATTACK}}
    answer = {"role": ATTACK, "content": [{"text": ATTACK}], "tool_calls": [call]}
    turn = Turn((1,), (2,), (-0.5,), (0,), answer, ({"role": "user", "content": ATTACK},))
    episodes = EpisodeWriter(run.episodes)
    episodes.write(Episode(ATTACK, Task(ATTACK), (turn,), Outcome.scored(9.0)), split=ATTACK)
    episodes.close()
    metrics = MetricsLog(run.metrics)
    metrics.log("eval", {"name": ATTACK, "split": ATTACK, "step": 1, "success": 0.5})
    metrics.log("failed", {"error": ATTACK})
    metrics.close()
    html = report_of(run)
    page = Page(html)
    assert ATTACK in page.text
    assert not {"script", "img", "link", "iframe", "a"} & set(page.tags)
    assert not {name for name in page.attributes if name.startswith("on")}
    assert not {"src", "href", "style"} & page.attributes
    assert not re.search(r"https?://|url\(|@import", html)
    assert "default-src 'none'" in html


def test_the_command_writes_the_page_of_a_run_that_goes_on(run: RunDir, tmp_path: Path) -> None:
    live = RunDir(shutil.copytree(run.path, tmp_path / "live"))
    with live.in_use():
        result = CliRunner().invoke(inspect, [str(live.path), "--report"], catch_exceptions=False)
    assert result.output == f"{live.report}\n"
    assert "running" in Page(live.report.read_text()).text


def test_a_run_that_has_only_begun_has_a_page_and_what_is_no_run_has_none(tmp_path: Path) -> None:
    begun = RunDir.create(tmp_path, "begun")
    begun.write_config({"model": "tiny"})
    text = Page(report_of(begun)).text
    assert "No steps yet." in text
    assert "No episode has a reward." in text
    begun.config.write_text("model = ")
    with pytest.raises(ConfigError, match="cannot be read as a run: TOML"):
        report_of(begun)


def test_a_long_conversation_is_shortened(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", steps=1)
    said = tuple({"role": "user", "content": f"message {n}"} for n in range(30))
    turn = Turn((1,), (2,), (-0.5,), (0,), {"role": "assistant", "content": 9000 * "x"}, said)
    episodes = EpisodeWriter(run.episodes)
    episodes.write(Episode("long", Task("t"), (turn,), Outcome.scored(9.0)))
    episodes.close()
    text = Page(report_of(run)).text
    assert "19 earlier messages are left out." in text
    assert "[5000 more characters]" in text
    assert "message 18" not in text


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-9, 4e-14, 1e12])
@pytest.mark.parametrize("count", [1, 2, 5 * MAX_POINTS])
def test_any_curve_is_drawn_inside_its_frame(value: float, count: int) -> None:
    points = tuple((float(step), value * (1 + step % 2)) for step in range(1, count + 1))
    svg = draw(Panel("loss", (Series("loss", points),)))
    numbers = re.findall(r'<polyline[^>]* points="([^"]*)"', svg)[0].split()
    assert len(numbers) <= MAX_POINTS
    for pair in numbers:
        x, y = map(float, pair.split(","))
        assert 46 <= x <= 350
        assert 12 <= y <= 170


def test_the_rewards_of_a_mixtures_sources_are_shown(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.write_config(SETTINGS)
    metrics = MetricsLog(run.metrics)
    sources = ["stock", "a/b", "c", "d", "e"]
    for step in (1, 2):
        values = {f"batch/source/{name}/reward": step / 4 for name in sources}
        episodes = {f"batch/source/{name}/episodes": 8.0 for name in sources}
        metrics.log("step", {"step": step, "batch/reward": step / 4, **values, **episodes})
    metrics.close()
    panels = [p for p in panels_of(run) if p.title == "training reward by source"]
    assert [[one.label for one in p.series] for p in panels] == [["stock", "a/b", "c", "d"], ["e"]]
    assert panels[0].series[1].points == ((1.0, 0.25), (2.0, 0.5))
    shown = CliRunner().invoke(inspect, [str(run.path)], catch_exceptions=False).output
    assert "by source  stock 0.25 -> 0.5  a/b 0.25 -> 0.5" in shown
