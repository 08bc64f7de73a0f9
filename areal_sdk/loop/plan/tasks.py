"""The tasks of a split: from a file, a plugin's dataset, a mixture, or the agent file's own `tasks`."""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path

from areal_sdk.builtin.hub import FILE_SUFFIXES, is_hub_id
from areal_sdk.builtin.rows import NoSplitError, has_splits
from areal_sdk.builtin.tasks import read_tasks
from areal_sdk.config import Config, MixtureSection
from areal_sdk.config.sections.base import JSON
from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.mixture import Part, mixed, with_source
from areal_sdk.loop.plan.program import TRAIN, Program
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.tasks import BLOCK, TaskStream, stable_seed
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.telemetry.episode_index import task_key
from areal_sdk.types import Task


def load_tasks(
    config: Config, *, program: Program, plugins: Plugins, say: Callable[[str], None]
) -> Sequence[Task] | TaskStream:
    """The training tasks in a stable order: all of them, or a stream if a generator does not end.

    Empty or ambiguous data is an error here, not later.
    """
    _check_given_once(program, TRAIN, config.tasks or config.mixture)
    if config.mixture:
        given = _mixture(config, program=program, plugins=plugins)
        if (curriculum := _curriculum(config)) is not None:
            known = _distinct(islice(given.begin(), BLOCK), given.what)
            led = _mixture(config, program=program, plugins=plugins, curriculum=curriculum)
            return TaskStream(
                led.begin(),
                again=led.begin,
                what=led.what,
                size=curriculum.every,
                known=known,
                curriculum=curriculum,
            )
        tasks = given.begin()
        first = _distinct(islice(tasks, BLOCK), given.what)
        return TaskStream(chain(first, tasks), again=given.begin, what=given.what, known=first)
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
    """The tasks that an evaluation of a split plays, and the number of tasks from which they were drawn."""

    tasks: Sequence[Task]
    num_available: int

    @property
    def digest(self) -> str:
        """Digest of the tasks, by which a resumed run recognises them."""
        digest = blake2b(digest_size=8)
        for task in self.tasks:
            digest.update(f"{task.id} {task_key(task)}\n".encode())
        return digest.hexdigest()


def load_held_out(
    config: Config,
    split: str,
    *,
    source: str | None,
    program: Program,
    plugins: Plugins,
    say: Callable[[str], None],
    may_lack: bool = False,
) -> HeldOut:
    """The held-out tasks of `split`: at most `eval.tasks`, drawn by the run's seed, because files often hold one source
    after the other. Endless tasks are drawn from the first ones. `say` tells the user that tasks are drawn by a default
    limit, or from the first ones, or that there are none. A source without tasks is an error unless it `may_lack`
    them."""
    _check_given_once(program, split, source)
    if source is None and config.mixture and split not in program.given:
        given = _held_out_mixture(config, split, program=program, plugins=plugins)
    else:
        given = _find(config, source, split, program=program, plugins=plugins)
    most, seed = config.eval.tasks, config.run.seed
    limit = max(BLOCK, most)
    asked = islice(given.begin(), None if given.is_finite else limit + 1)
    try:
        tasks = _distinct(asked, given.what, may_lack=may_lack)
    except NoSplitError:
        if not may_lack:
            raise
        tasks = []
    if not tasks:
        say(f"{given.what}: no tasks, so nothing is measured on them (--eval-tasks names others)")
    elif not given.is_finite and len(tasks) > limit:
        tasks = tasks[:limit]
        drawn = f"{most} of the first {limit} tasks are measured, drawn by run.seed = {seed}"
        say(f"{split}: {drawn}; {given.what} goes on after them (eval.tasks)")
    elif len(tasks) > most and "tasks" not in config.eval.model_fields_set:
        drawn = f"{most} of {len(tasks)} tasks are measured, drawn by run.seed = {seed}"
        say(f"{split}: {drawn} (eval.tasks)")
    return HeldOut(_sample(tasks, most, seed=stable_seed("held-out", seed, split)), len(tasks))


def _sample(tasks: Sequence[Task], most: int, *, seed: int) -> tuple[Task, ...]:
    """A random sample of at most `most` of `tasks`, in their order."""
    if len(tasks) <= most:
        return tuple(tasks)
    return tuple(
        tasks[place] for place in sorted(random.Random(seed).sample(range(len(tasks)), most))
    )


def _check_given_once(program: Program, split: str, named: object) -> None:
    """Raise ConfigError if the settings name tasks for a split whose tasks were given from Python."""
    if named and split in program.given:
        raise ConfigError(
            f"tasks for {split!r} were given from Python, and the settings name others ({named!r:.200}): "
            "leave one of them out"
        )


@dataclass(frozen=True, slots=True)
class _Given:
    """The tasks of a split, wherever they come from."""

    what: str
    ask: Callable[[], Iterable[Task]]
    """Gives the tasks, once for each pass."""
    is_finite: bool
    travel_to: str
    """The kind of process that tasks are sent to, in words; empty if they stay in this process."""

    def begin(self) -> Iterator[Task]:
        """One pass over the tasks, each checked as it is read."""
        given: object = self.ask()
        if not isinstance(given, Iterable):
            raise ConfigError(
                f"{self.what} returns {type(given).__name__}: yield tasks, or return a list of them"
            )
        for item in given:
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
    config: Config,
    source: str | None,
    split: str,
    *,
    program: Program,
    plugins: Plugins,
    fields: Mapping[str, str] | None = None,
    options: JSON | None = None,
) -> _Given:
    travel_to = _traveller(config)
    if source is None:
        if program.tasks is None:
            raise ConfigError(
                f"no tasks for {program.name!r}: give --tasks FILE, or define "
                "`def tasks(split)` beside the agent"
            )
        what, make = f"tasks({split!r}) of {program.name!r}", program.tasks
    elif _is_file(source):
        if options:
            raise ConfigError(
                f"options are for a plugin's dataset, and {source} is a file: leave them out"
            )
        renamed = fields or config.fields
        return _Given(
            source,
            lambda: read_tasks(source, split=split, fields=renamed),
            is_finite=not is_hub_id(source),
            travel_to=travel_to,
        )
    else:
        what = f"dataset {source!r} ({split})"
        table = {**config.options.get(f"tasks.{source}", {}), **(options or {})}
        make = plugins.configure("dataset", source, table)
    if fields or (config.fields and not config.mixture):
        raise ConfigError(
            f"fields rename what a file holds, and {what} is no file: change the tasks where they are made"
        )
    begun = [make(split)]  # asked once for the first pass, and to learn what it gives

    def ask() -> Iterable[Task]:
        return begun.pop() if begun else make(split)

    return _Given(what, ask, is_finite=isinstance(begun[0], Sized), travel_to=travel_to)


def _traveller(config: Config) -> str:
    """The kind of process that tasks are sent to, in words; empty if they stay in this process."""
    if config.rollout.workers:
        return f"an agent's worker (rollout.workers = {config.rollout.workers})"
    if config.rewards:
        return f"the worker of a reward ({', '.join(config.rewards)})"
    return ""


def _is_file(source: str) -> bool:
    """Whether a source is a file, or the id of a dataset on the hub, which is read as a file is."""
    return (
        Path(source).suffix.lower() in FILE_SUFFIXES or Path(source).exists() or is_hub_id(source)
    )


def _curriculum(config: Config) -> Curriculum | None:
    section = config.curriculum
    if section.target is None:
        return None
    weights = {part.label: part.weight for part in config.mixture}
    return Curriculum(weights, target=section.target, floor=section.floor, every=section.every)


def _mixture(
    config: Config, *, program: Program, plugins: Plugins, curriculum: Curriculum | None = None
) -> _Given:
    parts = []
    for part in config.mixture:
        found = _of_part(config, part, part.tasks, TRAIN, program=program, plugins=plugins)
        parts.append(Part(part.label, part.weight, found.begin, found.is_finite, bool(part.name)))
    shares = ", ".join(f"{part.label} {part.weight:g}" for part in parts)

    def ask() -> Iterator[Task]:
        return mixed(
            parts, seed=config.run.seed, shuffle=config.rollout.shuffle, curriculum=curriculum
        )

    return _Given(f"mixture ({shares})", ask, is_finite=False, travel_to="")


def _held_out_mixture(config: Config, split: str, *, program: Program, plugins: Plugins) -> _Given:
    """The held-out tasks of every part that has some, one after the other."""
    found = [
        (
            part,
            _of_part(config, part, s, split, program=program, plugins=plugins),
        )
        for part in config.mixture
        if (s := _held_out_of(part)) is not None
    ]

    def ask() -> Iterator[Task]:
        is_empty, has_split = True, False
        for part, given in found:
            try:
                for task in islice(given.begin(), None if given.is_finite else BLOCK):
                    is_empty = False
                    yield with_source(task, part.label, is_named=bool(part.name))
                has_split = True
            except NoSplitError:
                if part.eval_tasks:
                    raise
        if is_empty and has_split:
            raise ConfigError(
                f"no part of the mixture has tasks for {split!r}: give one of them eval_tasks, or measure "
                "nothing (eval.before = false, eval.after = false)"
            )

    return _Given(f"mixture ({split})", ask, is_finite=True, travel_to="")


def _of_part(
    config: Config,
    part: MixtureSection,
    source: str,
    split: str,
    *,
    program: Program,
    plugins: Plugins,
) -> _Given:
    return _find(
        config,
        source,
        split,
        program=program,
        plugins=plugins,
        fields=part.fields,
        options=part.options,
    )


def own_held_out(tasks: str | None) -> str | None:
    """The source of held-out tasks that belongs to a source of tasks: that source itself if it has several splits, as a
    plugin's dataset, the hub or a directory may. A single file has none."""
    if tasks is None or is_hub_id(tasks) or has_splits(Path(tasks)):
        return tasks
    return None if _is_file(tasks) else tasks


def _held_out_of(part: MixtureSection) -> str | None:
    """The source of the part's held-out tasks."""
    return part.eval_tasks or own_held_out(part.tasks)


def mixture_has_held_out(config: Config) -> bool:
    return any(_held_out_of(part) is not None for part in config.mixture)


def _distinct(tasks: Iterable[Task], what: str, *, may_lack: bool = False) -> list[Task]:
    """The tasks. ConfigError if two have the same id, or if there are none, unless they `may_lack`."""
    by_id: dict[str, Task] = {}
    for task in tasks:
        if by_id.setdefault(task.id, task) is not task:
            raise ConfigError(
                f"{what}: two tasks have the id {task.id!r}; ids key groups and resumes: "
                "give each task an id of its own"
            )
    if not by_id and not may_lack:
        raise ConfigError(f"{what}: no tasks")
    return list(by_id.values())
