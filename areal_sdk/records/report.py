"""`report.html`: a run as one page that needs no network, no script and no other file.

All text of models, users and tools is escaped, and the page also forbids scripts.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from areal_sdk.config.keys import join_key, leaves
from areal_sdk.errors import ConfigError
from areal_sdk.records.comparison import figures_of
from areal_sdk.records.curves import Panel, panels_of
from areal_sdk.records.diagnosis.verdict import verdict_of_run
from areal_sdk.records.overview import RunFate, RunOverview, overview_of
from areal_sdk.records.selection import Selection
from areal_sdk.records.svg import draw
from areal_sdk.telemetry import EpisodeRecord, EpisodeSummary, RunDir
from areal_sdk.telemetry.episode_log import read_episode
from areal_sdk.telemetry.files import write_atomically
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.telemetry.metrics import cold_start, told
from areal_sdk.types import Message

NUM_EPISODES = 4
"""Number of the best episodes, and of the worst, that the page shows."""
MAX_MESSAGES = 12
"""Number of an episode's last messages that the page shows."""
MAX_CHARACTERS = 4000
"""Number of characters that the page shows of a message."""


def write_report(run_dir: RunDir) -> Path:
    """Write the report of the run as it is now; returns its path."""
    write_atomically(run_dir.report, report_of(run_dir).encode("utf-8", "replace"), durable=False)
    return run_dir.report


def report_of(run_dir: RunDir) -> str:
    """The page; ConfigError if the directory is not a run's."""
    overview = overview_of(run_dir.path)
    if overview is None or overview.state is RunFate.UNREADABLE:
        why = overview.problem if overview else "its settings name no model"
        raise ConfigError(f"{run_dir.path} cannot be read as a run: {why}")
    template = Template(files(__package__).joinpath("report.html").read_text("utf-8"))
    problems = filter(None, (overview.problem, cold_start(run_dir.read_steps())))
    return template.substitute(
        name=escape(overview.name),
        about=_about(overview),
        problems="".join(f'<p class="problem">{escape(one)}</p>' for one in problems)
        + _verdict(run_dir),
        figures=_figures(figures_of(run_dir)),
        panels="".join(map(_panel, panels_of(run_dir))) or "<p>No steps yet.</p>",
        best=_episodes(run_dir, Selection(NUM_EPISODES, "best")),
        worst=_episodes(run_dir, Selection(NUM_EPISODES, "worst")),
        settings=_settings(run_dir.read_config()),
    )


def _verdict(run_dir: RunDir) -> str:
    """The verdict on the run and its notices."""
    verdict = verdict_of_run(run_dir)
    style = ' class="problem"' if verdict and verdict.missing else ""
    line = f"<p{style}>{escape(str(verdict))}</p>" if verdict else ""
    notices = told(run_dir.read_history())
    rows = _rows((f"step {one['step']}", f"{one['level']}: {one['text']}") for one in notices)
    return line + (
        f"<details><summary>{counted(len(notices), 'notice')}</summary><table>{rows}</table></details>"
        if rows
        else ""
    )


def _about(overview: RunOverview) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(overview.began))
    parts = [f"{overview.agent} on {overview.model}"]
    if overview.algorithm != "-":
        parts.append(overview.algorithm)
    parts += [f"began {began}", overview.state.value]
    return escape(" \N{MIDDLE DOT} ".join(parts))


def _figures(figures: Mapping[str, float | None]) -> str:
    return "".join(
        f"<div><b>{_figure(value)}</b><span>{escape(name)}</span></div>"
        for name, value in figures.items()
        if value is not None
    )


def _figure(value: float) -> str:
    """A number with three or four digits that count.

    >>> _figure(0.81904), _figure(15680), _figure(4)
    ('0.819', '15,680', '4')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _panel(panel: Panel) -> str:
    return f'<div class="panel"><h3>{escape(panel.title)}</h3>{draw(panel)}</div>'


def _episodes(run_dir: RunDir, selection: Selection) -> str:
    found = selection.of(run_dir)
    shown = [_episode(e, read_episode(run_dir.episodes, e)) for e in found]
    return "".join(shown) or "<p>No episode has a reward.</p>"


def _episode(summary: EpisodeSummary, record: EpisodeRecord) -> str:
    facts = [f"reward {summary.reward:g}", f"task {summary.task_id}", summary.split]
    if summary.step is not None:
        facts.append(f"trained in step {summary.step}")
    if summary.advantage is not None:
        facts.append(f"advantage {summary.advantage:+.2f}")
    messages = record.episode.messages
    left_out = len(messages) - MAX_MESSAGES
    note = f"<p>{left_out} earlier messages are left out.</p>" if left_out > 0 else ""
    body = "".join(map(_message, messages[-MAX_MESSAGES:])) or "<p>No text is recorded.</p>"
    head = f"{escape(', '.join(facts))} <code>{escape(summary.id)}</code>"
    return f"<details><summary>{head}</summary>{note}{body}</details>"


def _message(message: Message) -> str:
    role = str(message.get("role", "?"))
    content = message.get("content") or ""
    lines = [content if isinstance(content, str) else json.dumps(content, default=str)]
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        lines.append(f"-> {function.get('name')}({function.get('arguments', '')})")
    text = "\n".join(line for line in lines if line)
    cut = "" if len(text) <= MAX_CHARACTERS else f"\n[{len(text) - MAX_CHARACTERS} more characters]"
    style = role if role in ("assistant", "tool") else "other"
    shown = escape(text[:MAX_CHARACTERS] + cut)
    return f'<pre class="{style}"><b>{escape(role)}</b>\n{shown}</pre>'


def _settings(config: Mapping[str, object]) -> str:
    return _rows((join_key(*parts), str(value)) for parts, value in leaves(config))


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
