"""Finds settings that were given but change nothing in this run, or hardly anything, with the reason.

The sections say it: `IdleIf` beside a field, `remarks` for what needs a sentence of its own. A value that equals
the default surprises nobody, so it gets no remark. So a file with all settings, such as `--dry-run` prints, gets no
remark either.
"""

from collections.abc import Iterator

from areal_sdk.config.keys import join_key
from areal_sdk.config.root import Config
from areal_sdk.config.sections.base import IdleIf


def idle_settings(config: Config, *, engine: str) -> list[str]:
    """One line for each given setting that has no effect, or little, on training with `config`.

    `engine` is the registered engine that `engine.name` means.
    """
    remarks = (remark for _, section in config.walk() for remark in section.remarks(config))
    return [*_idle_fields(config), *remarks, *_idle_tables(config, engine)]


def without_nodes(config: Config, why: str) -> list[str]:
    """A line saying that no rollout nodes are started, and `why`; none if the run asks for no nodes."""
    nodes = config.rollout.nodes
    return [f"rollout.nodes = {nodes} changes nothing: {why}"] if nodes > 1 else []


def _idle_fields(config: Config) -> Iterator[str]:
    """Settings that differ from their defaults, and are idle in this run."""
    for prefix, section in config.walk():
        for name, field in type(section).model_fields.items():
            value = getattr(section, name)
            for rule in field.metadata:
                if isinstance(rule, IdleIf) and value != field.default and rule.is_idle(config):
                    yield f"{prefix}{name} = {value!r} changes nothing: {rule.why}"


def _idle_tables(config: Config, engine: str) -> Iterator[str]:
    """Yield options of an environment, an engine, a trainer, an algorithm or an agent that the run does not use."""
    for table, options in config.options.items():
        kind, _, name = table.partition(".")
        if not options:
            continue
        if kind == "env" and name != config.env:
            why = f"the environment played is {config.env!r}" if config.env else "no env is played"
        elif kind == "tasks" and name not in _datasets(config):
            why = f"no tasks come from a dataset {name!r}"
        elif kind == "engine" and name != engine:
            why = f"the engine is {config.engine.name!r}"
        elif kind == "trainer" and name != config.trainer.name:
            why = f"the trainer is {config.trainer.name!r}"
        elif kind == "algorithm" and name != config.algorithm.name:
            why = f"the algorithm is {config.algorithm.name!r}"
        elif kind == "cluster" and name != config.cluster.launcher:
            why = f"the launcher is {config.cluster.launcher!r}"
        elif table == "agent" and config.env is not None:
            why = f"no agent plays, but the environment {config.env!r}"
        else:
            continue
        yield f"[{join_key(kind, *([name] if name else []))}] changes nothing: {why}"


def _datasets(config: Config) -> set[str | None]:
    """The sources of tasks that the settings name."""
    parts = {source for part in config.mixture for source in (part.tasks, part.eval_tasks)}
    return {config.tasks, config.eval_tasks, *parts}
