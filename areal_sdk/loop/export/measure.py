"""An exported directory measured on the held-out tasks of its run, before its card quotes a figure."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, parse_config
from areal_sdk.errors import ArealError, ConfigError, cause_of
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.evaluation.evaluator import Reports, play_held_out
from areal_sdk.loop.export.card import Figures
from areal_sdk.loop.learning.training import held_out_tasks
from areal_sdk.loop.plan.models import check_served
from areal_sdk.loop.plan.parts import load_plugins_of
from areal_sdk.loop.plan.program import Program, load_program
from areal_sdk.loop.plan.tasks import HeldOut
from areal_sdk.loop.services.opening import open_services
from areal_sdk.loop.shutdown import run_to_the_end
from areal_sdk.plugins import Plugins
from areal_sdk.records.notebook import status_writer
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.view import EvalView

_OF_THE_RUN = ("cluster", "serve", "observers", "init_from")
"""Settings about machines, callers and observers, which a measurement does not have."""

_OF_ITS_ADDRESS = ("host", "port", "admin_key")


class MeasureError(ArealError):
    """The exported files could not be measured."""


def measuring(run: RunDir, *, asked: bool | None) -> Callable[[Path], Figures]:
    """A function that measures a directory on the tasks of `run`. A failure is an error only if the measurement was
    `asked` for."""
    if asked is False:
        return lambda _: Figures()
    try:
        measurement = Measurement.of(run)
    except ArealError as exc:
        if asked:
            raise MeasureError(f"the tasks of {run.path} are not at hand: {exc}") from exc
        problem = str(exc)
        return lambda _: Figures(problem=problem)

    def measure(directory: Path) -> Figures:
        try:
            reports = measurement.measure(directory)
        except Exception as exc:  # of an engine, or of the user's agent
            if asked:
                raise MeasureError(f"the files could not be measured: {exc}") from exc
            return Figures(problem=str(exc) or type(exc).__name__)
        return Figures(reports, engine=f"{measurement.config.engine.name} engine")

    return measure


@dataclass(frozen=True, slots=True)
class Measurement:
    """The held-out tasks of a run, ready to be played on a model directory."""

    config: Config
    program: Program
    plugins: Plugins
    tasks: Mapping[str, HeldOut]

    @classmethod
    def of(cls, run: RunDir) -> "Measurement":
        """The measurement of `run`. ConfigError if the tasks of the run are not at hand."""
        if given := run.read_call():
            raise ConfigError(f"its {', '.join(given)} were objects given from Python")
        config = parse_config(_measuring(run.read_config()))
        if not (config.agent or config.env or config.command):
            raise ConfigError("the run played no tasks")
        plugins = load_plugins_of(config)
        program = load_program(config, plugins=plugins)
        tasks = held_out_tasks(config, program, plugins)
        if not tasks:
            raise ConfigError("the run measured no held-out tasks")
        return cls(config, program, plugins, tasks)

    def measure(self, directory: Path) -> Reports:
        """Play the tasks on the model in `directory`."""
        view = EvalView(status_writer(), name=f"{self.program.name} on the exported files")
        try:
            return run_to_the_end(self._play(directory, view))
        except ExceptionGroup as group:
            raise cause_of(group) from group

    async def _play(self, directory: Path, view: EvalView) -> Reports:
        config, section, reports = self.config, self.config.eval, {}
        model = check_served(config, directory, self.plugins)
        with tempfile.TemporaryDirectory(prefix="areal-sdk-export-") as scratch:
            async with (
                view,
                open_services(
                    config,
                    self.program,
                    model=model,
                    plugins=self.plugins,
                    run_dir=RunDir(Path(scratch)),
                    say=view.say,
                ) as services,
            ):
                num_tasks = sum(len(held_out.tasks) for held_out in self.tasks.values())
                view.begin(num_tasks * section.samples, temperature=section.sampling_temperature)
                sampling = SamplingPolicy(temperature=section.sampling_temperature)
                for split, held_out in self.tasks.items():
                    async with services.playing.runner(split=split, sampling=sampling) as runner:
                        reports[split] = await play_held_out(
                            runner, held_out, section, split=split, on_episode=view.evaluated
                        )
        return reports


def _measuring(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run for an engine on this machine that loads the exported files as they are."""
    kept = {name: value for name, value in settings.items() if name not in _OF_THE_RUN}
    engine = {**settings.get("engine", {}), "dtype": "auto", "device": "auto"}
    if engine.get("name") != "sglang":  # a server of others has a model of its own
        engine["name"] = "local"
    gateway = settings.get("gateway", {})
    return {
        **kept,
        "engine": engine,
        "gateway": {key: gateway[key] for key in gateway if key not in _OF_ITS_ADDRESS},
        "rollout": {**settings.get("rollout", {}), "nodes": 1},
    }
