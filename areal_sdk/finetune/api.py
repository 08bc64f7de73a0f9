"""The fine-tuning commands as functions: configuration in, summary out."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, idle_settings
from areal_sdk.errors import ConfigError, cause_of
from areal_sdk.finetune.distillation import play_teacher
from areal_sdk.finetune.training import FinetunePlan, make_plan
from areal_sdk.loop.evaluation.standalone import takes_tokens
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.loop.mirrored import open_run
from areal_sdk.loop.plan.models import with_model_of_run
from areal_sdk.loop.plan.parts import load_plugins_of, make_observers
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.plan.tasks import load_tasks
from areal_sdk.loop.runs import Training, resumed, run_to_its_end, write_config
from areal_sdk.loop.services.gateway import make_backend
from areal_sdk.loop.shutdown import run_to_the_end
from areal_sdk.records.notebook import status_writer
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.view import EvalView

logger = logging.getLogger(__name__)

TEACHER_KEY = "OPENAI_API_KEY"
"""Variable that holds the key of the teacher's endpoint, so that no file has to hold it."""


def finetune(config: Config, *, quiet: bool = False) -> RunSummary:
    """Learn from `finetune.data`."""
    return run_to_its_end(Training(_plan(config), _plan, quiet=quiet))


def check(config: Config) -> Config:
    """`--dry-run`: check everything that can be checked before a process starts. Returns the settings as resolved."""
    return _plan(config).config


def resume_finetuning(
    path: str | Path,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Continue the run whose directory or mirror is `path` from its latest checkpoint. `settings` may raise its
    limits."""
    run_dir = open_run(path)
    return run_to_its_end(
        resumed(
            run_dir, overrides or {}, _plan, settings=settings, learns_from_data=True, quiet=quiet
        )
    )


def _plan(config: Config) -> FinetunePlan:
    for line in idle_settings(config, engine=config.engine.kind):
        logger.warning("%s", line)
    plugins = load_plugins_of(config)
    make_observers(config, plugins)
    return make_plan(with_model_of_run(config), plugins=plugins)


@dataclass(frozen=True, slots=True)
class Teacher:
    """The teacher's model and endpoint, and the number of tasks that it plays."""

    base_url: str
    model: str
    num_tasks: int | None = None
    """Maximum number of training tasks that are played, from the first on; None: all tasks of a source that ends."""
    samples: int = 1
    """Number of attempts at each task."""


@dataclass(frozen=True, slots=True)
class Taught:
    """The result of a teacher's episodes, and the run directory that holds them."""

    run_dir: Path
    report: EvalReport


def ask_teacher(config: Config, teacher: Teacher, *, quiet: bool = False) -> Taught:
    """Have the teacher play the agent's training tasks; every episode is kept in a run directory."""
    config = with_model_of_run(config)
    plugins = load_plugins_of(config)
    backend = make_backend(
        teacher.base_url,
        plugins=plugins,
        api_key=os.environ.get(TEACHER_KEY, ""),
        max_request_s=config.rollout.request_timeout_s,
    )
    program = load_program(config, plugins=plugins)
    if takes_tokens(program.agent):
        raise ConfigError(
            f"{program.name} is played token by token, and a teacher gives only text: distill an Agent "
            "whose client uses context.base_url"
        )
    found = load_tasks(config, program=program, plugins=plugins, say=logger.warning)
    if teacher.num_tasks is None and not isinstance(found, Sequence):
        raise ConfigError(
            f"the tasks of {program.name!r} go on and on: say how many the teacher plays (--num-tasks)"
        )
    known = found if isinstance(found, Sequence) else found.first
    tasks = known[: teacher.num_tasks]
    stem = f"{config.run.name or program.name}-teacher"
    run_dir = RunDir.create(config.run.dir, None, stem=stem)
    serve = config.serve.model_copy(update={"upstream": teacher.base_url})
    write_config(run_dir, config.model_copy(update={"serve": serve}), plugins)
    writer = None if quiet else status_writer()
    view = EvalView(writer, name=f"{program.name} on the teacher {teacher.model}")

    async def played() -> EvalReport:
        async with view:
            view.begin(len(tasks) * teacher.samples)
            return await play_teacher(
                config,
                program,
                tasks,
                backend=backend,
                model=teacher.model,
                samples=teacher.samples,
                run_dir=run_dir,
                plugins=plugins,
                on_episode=view.evaluated,
            )

    try:
        report = run_to_the_end(played())
    except ExceptionGroup as group:
        raise cause_of(group) from group
    return Taught(run_dir.path, report)
