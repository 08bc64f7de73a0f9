"""`areal_sdk.Run`: a run's directory, for a notebook or a script."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areal_sdk.errors import ConfigError
from areal_sdk.records.curves import panels_of
from areal_sdk.records.overview import overview_of
from areal_sdk.records.selection import Selection
from areal_sdk.records.tokens import EpisodeTokens, tokens_of
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_log import read_episode
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.telemetry.token_log import StepTokens
from areal_sdk.types import Episode

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

JSON = dict[str, Any]
Kind = Literal["metrics", "episodes", "evaluations"]

NUM_COLUMNS = 3
"""Number of panels side by side in a plot."""
_PLACES = ("file", "offset", "length")


class Run:
    """A run, read from its directory: while the run goes on, or a year later.

    Every call reads the files again. Rows are dicts, newest last.
    """

    def __init__(self, path: str | Path) -> None:
        """Raise ConfigError if `path` is no run directory."""
        self._run_dir = RunDir.open(Path(path))

    def __repr__(self) -> str:
        overview = overview_of(self.path)
        if overview is None:
            return f"<Run {self.path}>"
        return f"<Run {self.path}: {counted(overview.steps, 'step')}, {overview.state}>"

    @property
    def path(self) -> Path:
        return self._run_dir.path

    @property
    def settings(self) -> JSON:
        """The settings as the run resolved them, without secrets."""
        return self._run_dir.read_config()

    def metrics(self) -> list[JSON]:
        """One row per step. If a resumed run repeated a step, the latest one counts."""
        return self._run_dir.read_steps()

    def evaluations(self) -> list[JSON]:
        """One row per evaluation and split."""
        return self._run_dir.read_history(kind="eval")

    def episodes(self, where: str | None = None) -> list[JSON]:
        """One row per episode; with `where`, only the episodes that meet a condition: `"reward < 0.5 and step == 3"`."""
        found = reversed(Selection(where=where).of(self._run_dir))
        return [
            {name: value for name, value in one._asdict().items() if name not in _PLACES}
            for one in found
        ]

    def episode(self, episode_id: str) -> Episode:
        """One episode, with its turns, messages and tokens."""
        return self._run_dir.find_episode(episode_id).episode

    def whole(self, rows: Iterable[Mapping[str, Any]]) -> list[Episode]:
        """The episodes of these rows of `episodes()`, in their order. It reads the index once."""
        wanted = [(row["split"], row["id"], row["time"]) for row in rows]
        found = {(one.split, one.id, one.time): one for one in self._run_dir.list_episodes()}
        return [read_episode(self._run_dir.episodes, found[place]).episode for place in wanted]

    def how_to_resume(self) -> str:
        """The command or Python call that resumes the run."""
        return self._run_dir.how_to_resume()

    def write_report(self) -> Path:
        """Write `report.html`, the run as one page, as it is now; returns its path."""
        from areal_sdk.records.report import write_report

        return write_report(self._run_dir)

    def tokens(self, step: int) -> StepTokens | None:
        """The record of the tokens of a step; None if there is none."""
        return self._run_dir.read_tokens(step)

    def episode_tokens(self, episode_id: str) -> EpisodeTokens | None:
        """The record of an episode's tokens in training, by turn; None if no step trained it, or its record is gone."""
        return tokens_of(self._run_dir, episode_id)

    def to_pandas(self, kind: Kind = "metrics") -> "pandas.DataFrame":
        """The rows of `kind` as a DataFrame. Needs pandas."""
        rows: Mapping[str, Any] = {
            "metrics": self.metrics,
            "episodes": self.episodes,
            "evaluations": self.evaluations,
        }
        if kind not in rows:
            raise ConfigError(f"no rows of kind {kind!r}; known: {', '.join(rows)}")
        try:
            import pandas as pd
        except ImportError as exc:
            raise _missing("pandas", "to_pandas", f"{kind}() gives a list of dicts") from exc
        return pd.DataFrame(rows[kind]())

    def plot(self) -> "matplotlib.figure.Figure":
        """The curves of the report as a figure. Needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError as exc:
            way = f"areal-sdk inspect {self.path} --report draws the same curves"
            raise _missing("matplotlib", "plot", way) from exc
        panels = panels_of(self._run_dir)
        num_rows = max(1, -(-len(panels) // NUM_COLUMNS))
        figure = Figure(figsize=(4 * NUM_COLUMNS, 2.6 * num_rows), layout="constrained")
        for number, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(num_rows, NUM_COLUMNS, number)
            axes.set_title(panel.title, fontsize=9)
            for series in panel.series:
                steps, values = _columns(series.points)
                axes.plot(steps, values, label=series.label, marker="o" * panel.is_measured)
                if series.band:
                    steps, low, high = _columns(series.band)
                    axes.fill_between(steps, low, high, alpha=0.15)
            if len(panel.series) > 1:
                axes.legend(fontsize=7)
        return figure


def _columns(rows: Iterable[tuple[float, ...]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _missing(package: str, method: str, otherwise: str) -> ConfigError:
    return ConfigError(
        f"Run.{method} needs {package}: pip install {package}; without it, {otherwise}"
    )
