"""The observers: what a run tells them goes to the process of their library, in few kinds of events."""

import importlib.util
from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from areal_sdk import ConfigError, Episode, hookimpl
from areal_sdk_trackers.link import Link
from areal_sdk_trackers.samples import Samples


class Tracker(ABC):
    """Sends metrics, settings, evaluations and sample episodes to one library."""

    library: ClassVar[str]
    """The package that its process imports, and the extra that installs it."""

    def __init__(
        self, *, samples: int, samples_every: int, finish_s: float, **options: object
    ) -> None:
        if importlib.util.find_spec(self.library) is None:
            raise ConfigError(
                f"observer {self.library!r} needs {self.library}: "
                f'pip install "areal-sdk-trackers[{self.library}]"'
            )
        if samples < 0 or samples_every < 1:
            raise ConfigError(
                f"[observer.{self.library}] samples = {samples}, samples_every = {samples_every}: give "
                "at least 0 and 1"
            )
        self._options = options
        self._finish_s = finish_s
        self._samples_every = samples_every
        self._trained = Samples(samples)
        self._measured: dict[tuple[str, str], Samples] = {}
        self._num_samples = samples
        self._link: Link | None = None

    @hookimpl
    def on_run_start(self, name: str, run_dir: str, settings: Mapping[str, Any]) -> None:
        log = Path(run_dir) / "logs" / f"tracker-{self.library}.log"
        self._link = Link(self.library, log=log, finish_s=self._finish_s)
        self._send(
            kind="begin", name=name, run_dir=run_dir, settings=settings, options=self._options
        )

    @hookimpl
    def on_episode(self, episode: Episode, dropped: str) -> None:
        self._trained.add(episode, dropped)

    @hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send(kind="metrics", step=step, values=metrics)
        if step % self._samples_every == 0:
            self._send_samples("train", step, self._trained)
        self._trained = Samples(self._num_samples)

    @hookimpl
    def on_eval_episode(self, name: str, split: str, episode: Episode) -> None:
        kept = self._measured.setdefault((name, split), Samples(self._num_samples))
        kept.add(episode, "")

    @hookimpl
    def on_evaluation(self, name: str, split: str, step: int, metrics: Mapping[str, float]) -> None:
        self._send(kind="evaluation", name=name, split=split, step=step, values=metrics)
        if (kept := self._measured.pop((name, split), None)) is not None:
            self._send_samples(split, step, kept)

    @hookimpl
    def on_run_end(self, summary: Mapping[str, float]) -> None:
        if self._link is not None:
            self._link.close({"kind": "end", "values": dict(summary)})

    def _send_samples(self, split: str, step: int, kept: Samples) -> None:
        if rows := kept.rows():
            self._send(kind="samples", split=split, step=step, rows=rows)

    def _send(self, **event: Any) -> None:
        if self._link is not None:
            self._link.send(event)


class Wandb(Tracker):
    """Weights & Biases, online or offline."""

    library = "wandb"

    def __init__(
        self,
        *,
        project: str = "areal-sdk",
        entity: str | None = None,
        group: str | None = None,
        tags: tuple[str, ...] = (),
        mode: Literal["online", "offline"] | None = None,
        samples: int = 8,
        samples_every: int = 10,
        finish_s: float = 60.0,
    ) -> None:
        """`mode`: default: WANDB_MODE, else online. The files of `offline` are in the run's directory."""
        super().__init__(
            samples=samples,
            samples_every=samples_every,
            finish_s=finish_s,
            project=project,
            entity=entity,
            group=group,
            tags=tags,
            mode=mode,
        )


class TensorBoard(Tracker):
    """Event files of TensorBoard."""

    library = "tensorboard"

    def __init__(
        self,
        *,
        dir: str | None = None,
        samples: int = 8,
        samples_every: int = 10,
        finish_s: float = 30.0,
    ) -> None:
        """`dir`: where directories of runs are made; default: `tensorboard` in the run's directory."""
        super().__init__(samples=samples, samples_every=samples_every, finish_s=finish_s, dir=dir)


class Trackio(Tracker):
    """trackio: a local database, or a Space."""

    library = "trackio"

    def __init__(
        self,
        *,
        project: str = "areal-sdk",
        space_id: str | None = None,
        samples: int = 8,
        samples_every: int = 10,
        finish_s: float = 30.0,
    ) -> None:
        super().__init__(
            samples=samples,
            samples_every=samples_every,
            finish_s=finish_s,
            project=project,
            space_id=space_id,
        )


class Mlflow(Tracker):
    """MLflow: a server, or a database on disk."""

    library = "mlflow"

    def __init__(
        self,
        *,
        uri: str | None = None,
        experiment: str = "areal-sdk",
        samples: int = 8,
        samples_every: int = 10,
        finish_s: float = 60.0,
    ) -> None:
        """`uri`: where runs are stored, such as `sqlite:///mlflow.db`; default: MLFLOW_TRACKING_URI."""
        super().__init__(
            samples=samples,
            samples_every=samples_every,
            finish_s=finish_s,
            uri=uri,
            experiment=experiment,
        )
