"""The commands as functions: configuration in, summary out.

    train -> training.make_plan -> runs.begun -> training.run_training
          -> services.open_services -> steps.TrainingLoop.run

Each function runs an event loop of its own. The functions of `aio` use the running loop.
"""

import logging
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, idle_settings, parse_config, without_nodes
from areal_sdk.config.keys import join_key, leaves
from areal_sdk.errors import ConfigError, cause_of
from areal_sdk.loop.evaluation.standalone import RemoteEndpoint, run_evaluation
from areal_sdk.loop.learning.state import (
    RunSummary,
    step_of,
)
from areal_sdk.loop.learning.training import RunPlan, make_live_plan, make_plan
from areal_sdk.loop.mirrored import check_package, open_run
from areal_sdk.loop.plan.devices import device_plan
from areal_sdk.loop.plan.given import Given, TasksLike, read_call
from areal_sdk.loop.plan.models import find_served_model, with_model_of_run
from areal_sdk.loop.plan.parts import load_plugins_of
from areal_sdk.loop.plan.program import Program, load_program
from areal_sdk.loop.runs import (
    Training,
    removed_if_refused,
    resumed,
    run_to_its_end,
    write_config,
)
from areal_sdk.loop.services.gateway import check_serves
from areal_sdk.loop.services.opening import open_launcher
from areal_sdk.loop.serving import run_server, run_upstream, upstream_backend
from areal_sdk.loop.shutdown import refuse_inside_a_loop, run_to_the_end
from areal_sdk.plugins import Plugins
from areal_sdk.records.notebook import status_writer
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.view import EvalView

logger = logging.getLogger(__name__)


def train(
    agent: object = None,
    *,
    model: str | None = None,
    tasks: TasksLike | None = None,
    eval_tasks: TasksLike | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunSummary:
    """Train `agent`: a class, an instance, a function, or a name as for `areal-sdk train`. `settings` are those of the
    TOML file, as sections: `rollout={"batch": 64}`. The model is `smollm2` unless another is given. `env` (a class or a
    name) or `command` takes the place of the agent. `rewards` may be functions. Tasks are `Task`s, dicts, or a name.
    `resume` is the directory of a run to continue with the same agent and tasks; settings may then raise its limits."""
    refuse_inside_a_loop()  # before anything is loaded or written
    return run_to_its_end(
        plan_training(
            agent,
            settings,
            model=model,
            tasks={"train": tasks, "eval": eval_tasks},
            resume=resume,
            quiet=quiet,
        )
    )


def evaluate(
    agent: object = None,
    *,
    model: str = "smollm2",
    tasks: TasksLike | None = None,
    split: str = "eval",
    base_url: str | None = None,
    api_key: str | None = None,
    record: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> EvalReport:
    """Measure `agent` on `tasks` (or its own `tasks(split)`).

    With `base_url`, the model is that of an OpenAI-compatible endpoint, else a local one. `record` keeps the episodes
    in a run directory, which the report names. Progress is shown on stderr, unless `quiet`.
    """
    refuse_inside_a_loop()
    return _evaluate(
        plan_evaluation(
            read_call(agent, {"model": model, **settings}, {split: tasks}),
            split,
            endpoint=endpoint_at(base_url, api_key),
            record=record,
            quiet=quiet,
        )
    )


def train_config(config: Config, *, quiet: bool = False) -> RunSummary:
    return run_to_its_end(Training(_plan(config), _plan, quiet=quiet))


def resume_training(
    path: str | Path,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Continue the run whose directory or mirror is `path` from its latest checkpoint. `settings` may raise its limits."""
    run_dir = open_run(path)
    return run_to_its_end(_resumed(run_dir, overrides or {}, settings=settings, quiet=quiet))


def check_resume(
    path: str | Path,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> tuple[Config, str]:
    """`--dry-run` of a resume: the settings as resolved, and the place where the run would go on.

    ConfigError for everything that a resume refuses before it starts a process. The run is not changed.
    """
    training = _resumed(RunDir.open(Path(path)), overrides or {}, settings=settings, quiet=False)
    if not isinstance(training, Training):
        raise ConfigError(f"{path} has ended: raise its limits to go on, as with --steps")
    step = 0 if training.checkpoint is None else step_of(training.checkpoint)
    return training.plan.config, f"after step {step}" if step else "before its first step"


def evaluate_config(
    config: Config,
    *,
    split: str,
    base_url: str | None = None,
    api_key: str | None = None,
    record: bool = False,
    quiet: bool = False,
) -> EvalReport:
    endpoint = endpoint_at(base_url, api_key)
    return _evaluate(plan_evaluation(config, split, endpoint=endpoint, record=record, quiet=quiet))


def check(config: Config, *, say: Callable[[str], None] = logger.info) -> Config:
    """`--dry-run`: check everything that can be checked before a process starts, and say which process would get which
    GPU. Returns the settings as resolved."""
    if config.run.mirror is not None:
        check_package()
    plan = _plan(config)
    for line in device_plan(plan.config, plan.plugins, plan.model.directory).lines:
        say(line)
    if config.cluster.places:  # torchrun's ranks are started later
        run_to_the_end(_reach_cluster(config, plan.plugins))
    return plan.config


async def _reach_cluster(config: Config, plugins: Plugins) -> None:
    """Open the launcher and close it again; ConfigError if its cluster does not answer."""
    with tempfile.TemporaryDirectory(prefix="areal-sdk-check-") as scratch:
        run_dir = RunDir(Path(scratch))
        async with open_launcher(config, plugins=plugins, run_dir=run_dir, say=logger.info):
            pass


def serve_config(config: Config, *, say: Callable[[str], None]) -> RunSummary | None:
    """Serve until interrupted. Returns the summary of a server that learns."""
    if config.serve.learn:
        return run_to_its_end(Training(_plan(config), _plan))
    for line in without_nodes(config, "callers play, and a server has one gateway"):
        logger.warning("%s", line)
    run_dir = None
    check_serves(config)
    plugins = load_plugins_of(config)
    server: Callable[..., Coroutine[Any, Any, None]]
    if config.serve.upstream is not None:  # the backend checks it before it is written anywhere
        server = partial(run_upstream, config, upstream_backend(config, plugins), plugins=plugins)
    else:
        model = find_served_model(config, plugins=plugins)
        server = partial(run_server, config, model=model, plugins=plugins)
    if config.serve.keeps_sessions:
        run_dir = RunDir.create(config.run.dir, config.run.name, stem="serve")
        write_config(run_dir, config, plugins)
        say(f"run directory: {run_dir.path}")
    with removed_if_refused(run_dir):
        try:
            run_to_the_end(server(run_dir=run_dir, say=say))
        except KeyboardInterrupt:
            say("stopped")  # how servers end
        except ExceptionGroup as group:
            raise cause_of(group) from None
    return None


def _plan(config: Config, given: Given | None = None) -> RunPlan:
    for line in idle_settings(config, engine=config.engine.kind):
        logger.warning("%s", line)
    config = with_model_of_run(config)
    if config.serve.learn:
        return make_live_plan(config, plugins=load_plugins_of(config))
    if config.finetune.objective is not None:
        command = config.finetune.objective.replace("_", "-")
        raise ConfigError(
            f"finetune.objective learns from data and plays no tasks: use areal-sdk {command}"
        )
    plugins, program = _program(config, given or Given())
    return make_plan(config, plugins=plugins, program=program)


def _program(config: Config, given: Given) -> tuple[Plugins, Program]:
    """The plugins and the program, with the objects that were given from Python."""
    plugins = load_plugins_of(config)
    plugins.add_rewards(given.rewards)
    program = load_program(config, plugins=plugins, agent=given.agent)
    return plugins, program.with_tasks(given.tasks)


def plan_training(
    agent: object,
    settings: Mapping[str, Any],
    *,
    model: str | None,
    tasks: Mapping[str, object],
    resume: str | Path | None,
    quiet: bool,
) -> Training | RunSummary:
    """The run that a call of `train` asks for, or a summary if nothing is left to do."""
    given = read_call(agent, settings, tasks)
    if resume is not None:
        if model is not None:
            raise ConfigError("a run that is resumed keeps its model: leave model out")
        overrides = {join_key(*parts): value for parts, value in leaves(given.settings)}
        return _resumed(open_run(resume), overrides, given=given, quiet=quiet)
    chosen = {} if model is None else {"model": model}
    make = partial(_plan, given=given)
    plan = make(parse_config({**given.settings, **chosen}))
    return Training(plan, make, call=given.call, quiet=quiet, is_planned_once=given.is_read_once)


def _resumed(
    run_dir: RunDir,
    overrides: Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    given: Given | None = None,
    quiet: bool,
) -> Training | RunSummary:
    training = resumed(
        run_dir,
        overrides,
        partial(_plan, given=given),
        settings=settings,
        call=given.call if given else None,
        quiet=quiet,
    )
    if given is not None and given.is_read_once and isinstance(training, Training):
        return replace(training, is_planned_once=True)
    return training


def endpoint_at(base_url: str | None, api_key: str | None) -> RemoteEndpoint | None:
    return None if base_url is None else RemoteEndpoint(base_url, api_key or "none")


def plan_evaluation(
    asked: Config | Given,
    split: str,
    *,
    endpoint: RemoteEndpoint | None,
    record: bool = False,
    quiet: bool,
) -> Coroutine[Any, Any, EvalReport]:
    """Load the agent, and return the coroutine of its evaluation."""
    config, given = (
        (parse_config(asked.settings), asked) if isinstance(asked, Given) else (asked, Given())
    )
    plugins, program = _program(config, given)
    writer = None if quiet else status_writer()
    view = EvalView(writer, name=f"{program.name} on {config.model}")
    return run_evaluation(
        config,
        program,
        plugins=plugins,
        split=split,
        view=view,
        endpoint=endpoint,
        record=record,
    )


def _evaluate(evaluation: Coroutine[Any, Any, EvalReport]) -> EvalReport:
    try:
        return run_to_the_end(evaluation)
    except ExceptionGroup as group:
        raise cause_of(group) from group
