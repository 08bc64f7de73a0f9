"""What the user brought: an agent, its tasks and its demonstrations, found in one file.

Which tasks a split has: a JSONL file, a plugin's dataset, or the agent file's own `tasks`.

Demonstrations for supervised warm-up: a JSONL file, or `demonstrations()` beside the agent.
"""

import importlib
import inspect
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson

from areal_sdk.agent import Agent, AgentLike, RolloutWorkflow
from areal_sdk.builtin.jsonl import read_tasks
from areal_sdk.config import Config, SftSection
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.plugins import Plugins
from areal_sdk.process.user_code import load_user_module, refuse_while_importing
from areal_sdk.rollout.agents.spec import AgentSpec, make_agent
from areal_sdk.rollout.tasks import BLOCK, TaskStream, stable_seed
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Message, Task

TasksFn = Callable[[str], Iterable[Task]]
TRAIN = "train"
DemonstrationsFn = Callable[[], Iterable[Sequence[Message]]]


@dataclass(frozen=True, slots=True)
class Program:
    """An agent ready to play, and what its file defines beside it."""

    name: str
    agent: AgentLike | AgentSpec
    """A spec where workers make the agent (`rollout.workers`): this process does not."""
    tasks: TasksFn | None = None
    """`tasks(split)` of the agent's file."""
    demonstrations: DemonstrationsFn | None = None
    """`demonstrations()` of the agent's file: conversations for supervised warm-up."""
    has_held_out: bool = True
    """Whether `tasks` has other splits than the one to train on."""

    def with_tasks(self, given: Mapping[str, Iterable[Task]]) -> "Program":
        """The program with tasks given from Python in place of its file's."""
        if not given:
            return self
        has_held_out = any(split != TRAIN for split in given)
        return replace(self, tasks=lambda split: given.get(split, ()), has_held_out=has_held_out)


def load_program(config: Config, *, plugins: Plugins, agent: object | None = None) -> Program:
    """The program that `config.agent` or `config.env` names; `agent` is an object given in Python.

    A file may define an `Agent`, a `RolloutWorkflow`, an `Environment`, a class with one of
    AReaL's signatures, or a function called `agent`.
    """
    refuse_while_importing("a run")
    if agent is not None:
        return _program(agent, inspect.getmodule(agent), config)
    if config.env is not None:
        return _named_environment(config, plugins)
    if not config.agent:
        raise ConfigError("which agent? Give a file (agent.py), agent.py::Name, or a plugin's name")
    path, _, name = config.agent.partition("::")
    if path.endswith(".py"):
        module = load_user_module(Path(path))
        plugins.register_module(module, path)
        return _program(_pick(module, path, name), module, config)
    if ":" in config.agent:
        module_name, _, name = config.agent.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            raise ConfigError(f"agent {config.agent!r}: {exc}") from None
        return _program(_pick(module, config.agent, name), module, config)
    found = plugins.agents.get(config.agent)
    return _program(found, inspect.getmodule(found), config)


def _named_environment(config: Config, plugins: Plugins) -> Program:
    assert config.env is not None
    if config.agent:
        raise ConfigError(f"agent {config.agent!r} and env {config.env!r} both: give one of them")
    found = plugins.environments.get(config.env)
    return _program(
        found, inspect.getmodule(found), config, name=config.env, table=f"env.{config.env}"
    )


def _program(
    item: object, module: ModuleType | None, config: Config, *, name: str = "", table: str = "agent"
) -> Program:
    name = name or getattr(item, "__name__", type(item).__name__)
    options = config.options.get(table, {})
    step_timeout_s = config.rollout.tool_timeout_s
    agent: AgentLike | AgentSpec
    if config.rollout.workers:
        agent = AgentSpec.of(
            item,
            name=name,
            module=module,
            options=options,
            table=table,
            step_timeout_s=step_timeout_s,
        )
    else:
        agent = make_agent(
            item, name=name, options=options, table=table, step_timeout_s=step_timeout_s
        )
    return Program(
        name,
        agent,
        tasks=getattr(module, "tasks", None),
        demonstrations=getattr(module, "demonstrations", None),
    )


def _pick(module: ModuleType, where: str, name: str) -> object:
    found = {key: item for key, item in vars(module).items() if _is_agent(item, module)}
    if name:
        if hasattr(module, name):
            return getattr(module, name)
        raise ConfigError(f"no {name!r} in {where}; agents there: {', '.join(found) or 'none'}")
    if not found:
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


def _is_agent(item: object, module: ModuleType) -> bool:
    if getattr(item, "__module__", None) != module.__name__:
        return False  # imported, not defined here
    if inspect.isclass(item):
        if issubclass(item, (Agent, RolloutWorkflow, Environment)):
            return not inspect.isabstract(item)
        return _has_areal_signature(item)
    return inspect.isfunction(item) and item.__name__ == "agent"


def _has_areal_signature(cls: type[Any]) -> bool:
    """AReaL's agents: `run(self, data, **extra)` or `arun_episode(self, engine, data)`."""
    if inspect.iscoroutinefunction(getattr(cls, "arun_episode", None)):
        return True
    run = getattr(cls, "run", None)
    return inspect.iscoroutinefunction(run) and "data" in inspect.signature(run).parameters


def load_tasks(
    config: Config, *, program: Program, plugins: Plugins, say: Callable[[str], None]
) -> Sequence[Task] | TaskStream:
    """What to train on, in a stable order: all of it, or a stream where a generator goes on and on.

    Empty or ambiguous data is an error here, not later.
    """
    given = _find(config, config.tasks, TRAIN, program=program, plugins=plugins)
    tasks = given.begin()
    if given.is_finite:
        return _distinct(tasks, given.what)
    first = _distinct(islice(tasks, BLOCK + 1), given.what)
    if len(first) <= BLOCK:
        return first
    say(
        f"{given.what} goes on after {BLOCK} tasks: they are read as they are needed, and shuffled "
        f"{BLOCK} at a time; return a list to have all of them read at once and shuffled whole"
    )
    return TaskStream(chain(first, tasks), again=given.begin, what=given.what, known=first)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What an evaluation of a split plays, and of how many tasks."""

    tasks: Sequence[Task]
    num_available: int

    @property
    def digest(self) -> str:
        """Tells these tasks from others, in this run and when it is resumed."""
        digest = blake2b(digest_size=8)
        for task in self.tasks:
            digest.update(orjson.dumps([task.id, _content(task)]))
        return digest.hexdigest()


def load_held_out(
    config: Config,
    split: str,
    *,
    source: str | None,
    program: Program,
    plugins: Plugins,
    say: Callable[[str], None],
) -> HeldOut:
    """At most `eval.tasks` tasks of `split`, drawn by the run's seed; says so where nobody set that.

    Files often hold one source after the other, so the first tasks are no sample of the rest. Of a
    generator that goes on and on they are drawn from its first tasks all the same, and it says so.
    """
    given = _find(config, source, split, program=program, plugins=plugins)
    most, seed = config.eval.tasks, config.run.seed
    limit = max(BLOCK, most)
    tasks = _distinct(islice(given.begin(), None if given.is_finite else limit + 1), given.what)
    if not given.is_finite and len(tasks) > limit:
        tasks = tasks[:limit]
        drawn = f"{most} of the first {limit} tasks are measured, drawn by run.seed = {seed}"
        say(f"{split}: {drawn}; {given.what} goes on after them (eval.tasks)")
    elif len(tasks) > most and "tasks" not in config.eval.model_fields_set:
        drawn = f"{most} of {len(tasks)} tasks are measured, drawn by run.seed = {seed}"
        say(f"{split}: {drawn} (eval.tasks)")
    return HeldOut(_sample(tasks, most, seed=stable_seed("held-out", seed, split)), len(tasks))


def _sample(tasks: Sequence[Task], most: int, *, seed: int) -> tuple[Task, ...]:
    """At most `most` of `tasks`, in their order."""
    if len(tasks) <= most:
        return tuple(tasks)
    return tuple(
        tasks[place] for place in sorted(random.Random(seed).sample(range(len(tasks)), most))
    )


MAX_COMPARED = 100_000
"""Training tasks that held-out tasks are compared with: more of them would take seconds."""


def warn_of_overlap(
    train: Sequence[Task] | TaskStream, held_out: Mapping[str, HeldOut]
) -> tuple[str, ...]:
    """A warning for each split that measures tasks which are trained on."""
    known = train.first if isinstance(train, TaskStream) else train
    warnings = []
    for split, given in held_out.items():
        num_shared, num_tasks = _num_shared(given.tasks, known), len(given.tasks)
        if num_shared:
            share = "all" if num_shared == num_tasks else f"{num_shared} of"
            measured = "measured " if num_tasks < given.num_available else ""
            warnings.append(
                f"{split}: {share} {num_tasks} {measured}held-out tasks are training tasks too, so "
                "the evaluation cannot tell learning from remembering: let tasks(split) give other "
                f"tasks for {split!r}, or give other held-out tasks (--eval-tasks FILE.jsonl)"
            )
    return tuple(warnings)


def _num_shared(held_out: Sequence[Task], train: Sequence[Task]) -> int:
    """How many held-out tasks are among the training tasks, by their data.

    Where the data of tasks do not tell them apart, their ids count as well.
    """
    contents = {_content(task) for task in held_out}
    by_data = len(contents) == len(held_out) > 1

    def key(task: Task) -> str:
        return _content(task) if by_data else f"{task.id} {_content(task)}"

    wanted = {key(task) for task in held_out}
    return len(wanted & {key(task) for task in islice(train, MAX_COMPARED)})


def _content(task: Task) -> str:
    """The data of a task as text; empty if they are no JSON."""
    try:
        return orjson.dumps(dict(task.data), option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return ""


@dataclass(frozen=True, slots=True)
class _Given:
    """The tasks of a split, wherever they come from."""

    what: str
    ask: Callable[[], Iterable[Task]]
    """Gives them, once for each pass."""
    is_finite: bool
    travel_to: str
    """Who takes them to another process; empty where nobody does."""

    def begin(self) -> Iterator[Task]:
        """One pass over them, each checked as it is read."""
        for item in self.ask():
            if not isinstance(item, Task):
                raise ConfigError(
                    f"{self.what} yields {type(item).__name__}: yield areal_sdk.Task(id=...)"
                )
            if self.travel_to:
                self._check_travels(item)
            yield item

    def _check_travels(self, task: Task) -> None:
        try:
            pickle.loads(pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL))
        except Exception as exc:
            raise ConfigError(
                f"{self.what}: task {task.id!r} cannot be sent to {self.travel_to} ({exc}): keep to "
                "plain values and importable classes in Task.data"
            ) from exc


def _find(
    config: Config, source: str | None, split: str, *, program: Program, plugins: Plugins
) -> _Given:
    travel_to = ""
    if config.rollout.workers:
        travel_to = f"an agent's worker (rollout.workers = {config.rollout.workers})"
    elif config.rewards:
        travel_to = f"the worker of a reward ({', '.join(config.rewards)})"
    if source is None:
        if program.tasks is None:
            raise ConfigError(
                f"no tasks for {program.name!r}: give --tasks FILE.jsonl, or define "
                "`def tasks(split)` beside the agent"
            )
        what, make = f"tasks({split!r}) of {program.name!r}", program.tasks
    elif source.endswith((".jsonl", ".json")) or Path(source).exists():
        path = Path(source)
        return _Given(source, lambda: read_tasks(path), is_finite=True, travel_to=travel_to)
    else:
        what, make = f"dataset {source!r} ({split})", plugins.datasets.get(source)
    begun = [make(split)]  # asked once for the first pass, and to learn what it gives

    def ask() -> Iterable[Task]:
        return begun.pop() if begun else make(split)

    return _Given(what, ask, is_finite=isinstance(begun[0], Sized), travel_to=travel_to)


def _distinct(tasks: Iterable[Task], what: str) -> list[Task]:
    """The tasks, none of which may have the id of another."""
    by_id: dict[str, Task] = {}
    for task in tasks:
        if by_id.setdefault(task.id, task) is not task:
            raise ConfigError(
                f"{what}: two tasks have the id {task.id!r}; ids key groups and resumes"
            )
    if not by_id:
        raise ConfigError(f"{what}: no tasks")
    return list(by_id.values())


Conversation = Sequence[Message]


def load_demonstrations(section: SftSection, *, program: Program) -> list[Conversation]:
    """Conversations with at least one assistant message; none where `sft.steps` is 0."""
    if not section.steps:
        return []
    if section.demonstrations is not None:
        path = Path(section.demonstrations)
        return _checked_rows(_read(path), str(path))
    if program.demonstrations is None:
        raise ConfigError(
            f"sft.steps = {section.steps} needs demonstrations: set sft.demonstrations to a JSONL "
            f"file, or define `def demonstrations()` beside {program.name!r}"
        )
    return _checked_rows(program.demonstrations(), f"demonstrations() of {program.name!r}")


def _read(path: Path) -> Iterable[Conversation]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise ConfigError(f"no such file: sft.demonstrations = {str(path)!r}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield orjson.loads(line)["messages"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ConfigError(f'{path}, line {number}: not a JSON object with "messages"') from None


def _checked_rows(conversations: Iterable[Conversation], what: str) -> list[Conversation]:
    found = list(conversations)
    for index, conversation in enumerate(found):
        if not any(message.get("role") == "assistant" for message in conversation):
            raise ConfigError(f"{what}, number {index + 1}: no assistant message to learn from")
    if not found:
        raise ConfigError(f"{what}: no demonstrations")
    return found


def as_demonstrations(
    conversations: Iterable[Conversation], model_dir: Path, *, tool_format: str | None
) -> list[Demonstration]:
    """The conversations in tokens, exactly as the gateway would render them."""
    template = ChatTemplate.load(model_dir)
    renderer = Renderer(Tokenizer.load(model_dir), template, tool_format=tool_format)
    return [row for given in conversations for row in to_demonstrations(given, renderer)]
