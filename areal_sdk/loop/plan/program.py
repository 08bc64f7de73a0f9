"""The agent that a run plays, and what its file defines beside it."""

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_sdk.agent import Agent, AgentLike, RolloutWorkflow
from areal_sdk.config import Config
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.isolated import ISOLATED, isolated_environment
from areal_sdk.plugins import Plugins, validate_options
from areal_sdk.process.user_code import load_user_module, refuse_while_importing
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.spec import AgentSpec, make_agent
from areal_sdk.types import Message, Task

TasksFn = Callable[[str], Iterable[Task]]
TRAIN = "train"
DemonstrationsFn = Callable[[], Iterable[Sequence[Message] | Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Program:
    """An agent ready to play, and what its file defines beside it."""

    name: str
    agent: AgentLike | AgentSpec
    """The agent, or its spec if other processes make it (`rollout.workers`, `rollout.nodes`)."""
    tasks: TasksFn | None = None
    """`tasks(split)` of the agent's file."""
    demonstrations: DemonstrationsFn | None = None
    """`demonstrations()` of the agent's file: conversations for supervised warm-up."""
    has_held_out: bool = True
    """Whether `tasks` has other splits than the one to train on."""
    given: Collection[str] = ()
    """The splits whose tasks were given from Python."""

    def keep_output(self, directory: Path) -> None:
        """Write the output of the agent's command to a log in `directory`. Agents of other kinds write none."""
        if isinstance(self.agent, CommandAgent):
            self.agent.keep_output(directory)

    def with_tasks(self, given: Mapping[str, Iterable[Task]]) -> "Program":
        """The program with tasks given from Python in place of its file's."""
        if not given:
            return self
        has_held_out = any(split != TRAIN for split in given)
        return replace(
            self,
            tasks=lambda split: given.get(split, ()),
            has_held_out=has_held_out,
            given=[*given],
        )


def load_program(config: Config, *, plugins: Plugins, agent: object | None = None) -> Program:
    """The program that `config.agent` or `config.env` names; `agent` is an object given in Python.

    A file may define an `Agent`, a `RolloutWorkflow`, an `Environment`, a class with AReaL's `run(self, data, **extra)`
    or in a form that a plugin brings, or a function called `agent`.
    """
    refuse_while_importing("a run")
    if agent is not None:
        return _program(agent, inspect.getmodule(agent), config, plugins)
    _check_one_is_named(config)
    if config.command is not None:
        return command_program(config, config.command)
    if config.options.get("agent", {}).get("sandbox") is True:
        raise ConfigError(
            "--sandbox is for commands, which are processes of their own: give the agent as one, such as "
            '--command "python agent.py"'
        )
    if config.env is not None:
        return _named_environment(config, plugins)
    if not config.agent:
        raise ConfigError(
            "which agent? Give a file (agent.py), agent.py::Name, a plugin's name, or a command in any "
            'language (--command "node agent.js")'
        )
    path, _, name = config.agent.partition("::")
    if path.endswith(".py"):
        module = load_user_module(Path(path))
        plugins.register_module(module, path)
        return _program(_pick(module, path, name, plugins), module, config, plugins)
    if ":" in config.agent:
        module_name, _, name = config.agent.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            raise ConfigError(f"agent {config.agent!r}: {exc}") from None
        return _program(_pick(module, config.agent, name, plugins), module, config, plugins)
    found = plugins.agents.get(config.agent)
    return _program(found, inspect.getmodule(found), config, plugins)


def _check_one_is_named(config: Config) -> None:
    given = {"agent": config.agent, "env": config.env, "command": config.command}
    named = [f"{name} {value!r}" for name, value in given.items() if value]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)}: give one of them (options of a file: [agent])")


def command_program(config: Config, line: str) -> Program:
    """The program of a command in any language."""
    if config.rollout.workers:
        raise ConfigError(
            f"rollout.workers = {config.rollout.workers} holds agents written in Python; a command plays "
            "each episode in a process of its own: leave rollout.workers out"
        )
    options = config.options.get("agent", {})
    values = validate_options(CommandAgent, {**options, "line": line}, table="agent")
    agent = CommandAgent(**values)  # type: ignore[arg-type]
    return Program(agent.name, agent)


def _named_environment(config: Config, plugins: Plugins) -> Program:
    assert config.env is not None
    options = dict(config.options.get(f"env.{config.env}", {}))
    if isolated := options.pop(ISOLATED, False):
        timeout_s = config.rollout.tool_timeout_s
        agent = isolated_environment(
            config.env, isolated, options, plugins, step_timeout_s=timeout_s
        )
        return Program(config.env, agent)
    found = plugins.environments.get(config.env)
    table = f"env.{config.env}"
    return _program(found, inspect.getmodule(found), config, plugins, name=config.env, table=table)


def _program(
    item: object,
    module: ModuleType | None,
    config: Config,
    plugins: Plugins,
    *,
    name: str = "",
    table: str = "agent",
) -> Program:
    name = name or getattr(item, "__name__", type(item).__name__)
    options = config.options.get(table, {})
    step_timeout_s = config.rollout.tool_timeout_s
    forms = plugins.agent_forms
    form = forms.find(item)
    agent: AgentLike | AgentSpec
    if config.rollout.workers or config.rollout.nodes > 1:
        agent = AgentSpec.of(
            item,
            name=name,
            module=module,
            options=options,
            table=table,
            step_timeout_s=step_timeout_s,
            form=forms.reference(form) if form else "",
        )
    else:
        agent = make_agent(
            item,
            name=name,
            options=options,
            table=table,
            step_timeout_s=step_timeout_s,
            form=forms.get(form) if form else None,
        )
    return Program(
        name,
        agent,
        tasks=getattr(module, "tasks", None),
        demonstrations=getattr(module, "demonstrations", None),
    )


def _pick(module: ModuleType, where: str, name: str, plugins: Plugins) -> object:
    if name and hasattr(module, name):
        return getattr(module, name)
    found = {key: item for key, item in vars(module).items() if _is_agent(item, module, plugins)}
    if name:
        raise ConfigError(f"no {name!r} in {where}; agents there: {', '.join(found) or 'none'}")
    if not found:
        if unfinished := [key for key, item in vars(module).items() if _lacks_run(item, module)]:
            raise ConfigError(
                f"{unfinished[0]} in {where} has no `async def run(self, task, context)` (an Agent) or "
                "`run_episode` (a RolloutWorkflow): is the method called otherwise?"
            )
        if others := [key for key, item in vars(module).items() if _plays(item, module)]:
            raise ConfigError(
                f"no function in {where} is called `agent`: rename one, or name it, as in "
                f"{where}::{others[0]} (it has {', '.join(others)})"
            )
        raise ConfigError(
            f"no agent in {where}: define `class MyAgent(areal_sdk.Agent)` "
            "or `async def agent(task, context)`"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{len(found)} agents in {where}, {', '.join(found)}: "
            f"pick one, as in {where}::{min(found)}"
        )
    return next(iter(found.values()))


def _lacks_run(item: object, module: ModuleType) -> bool:
    """Whether an object is meant as an agent, but has no method that plays."""
    return (
        inspect.isclass(item)
        and issubclass(item, (Agent, RolloutWorkflow))
        and inspect.isabstract(item)
        and item.__module__ == module.__name__
    )


def _plays(item: object, module: ModuleType) -> bool:
    """Whether an object is a function of (task, context), whatever its name."""
    if not inspect.isfunction(item) or item.__module__ != module.__name__:
        return False
    return [*inspect.signature(item).parameters][:2] == ["task", "context"]


def _is_agent(item: object, module: ModuleType, plugins: Plugins) -> bool:
    if getattr(item, "__module__", None) != module.__name__:
        return False  # imported, not defined here
    if inspect.isclass(item):
        if issubclass(item, (Agent, RolloutWorkflow, Environment)):
            return not inspect.isabstract(item)
        run = getattr(item, "run", None)  # AReaL's, if it has `data`
        is_areal = inspect.iscoroutinefunction(run) and "data" in inspect.signature(run).parameters
        return is_areal or bool(plugins.agent_forms.find(item))
    return inspect.isfunction(item) and item.__name__ == "agent"
