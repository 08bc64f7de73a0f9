"""A mixture of task sources: an endless stream in which each has its share (`[[mixture]]`)."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.tasks import stable_seed
from areal_sdk.rollout.tasks.curriculum import Curriculum
from areal_sdk.types import Task


@dataclass(frozen=True, slots=True)
class Part:
    """One source of a mixture."""

    label: str
    weight: float
    ask: Callable[[], Iterable[Task]]
    """Function that gives the tasks of the part, once for each pass."""
    is_finite: bool
    is_named: bool = False
    """Whether the settings name the part. Reports then use this name in place of the families of its tasks."""


def mixed(
    parts: Sequence[Part], *, seed: int, shuffle: bool, curriculum: Curriculum | None = None
) -> Iterator[Task]:
    """Tasks without an end. At each point the parts have their proportions to within two tasks. A curriculum gives
    the proportions of each block of tasks when the block begins. The run then shuffles blocks (`rollout.shuffle`), so
    a batch has the proportions only on average.

    A source that ends begins again, in a new order. Ids name the source, and the pass from the second
    on: `gsm8k/12`, `gsm8k/12#2`.
    """
    streams = [_endless(part, seed=seed, shuffle=shuffle) for part in parts]
    total = sum(part.weight for part in parts)
    lead = [0.0] * len(parts)
    for number in count():
        shares: Sequence[float] = [part.weight / total for part in parts]
        if curriculum is not None:
            shares = curriculum.shares(number // curriculum.every)
        lead = [behind + share for behind, share in zip(lead, shares, strict=True)]
        chosen = lead.index(max(lead))
        lead[chosen] -= 1.0
        yield next(streams[chosen])


def with_source(task: Task, label: str, *, is_named: bool = False) -> Task:
    """The task with `label` before its id, and with a source: that of its data, else its family, else `label`. If the
    part `is_named`, the family does not count, because two parts may be two levels of one family."""
    source = task.data.get("source") or (label if is_named else task.source or label)
    data: Mapping[str, object] = {**task.data, "source": source}
    return replace(task, id=f"{label}/{task.id}", data=data)


def without_tasks(labels: Iterable[str], tasks: Iterable[Task]) -> Sequence[str]:
    """The labels of parts from which none of `tasks` comes."""
    ids = [task.id for task in tasks]
    return [label for label in labels if not any(id.startswith(f"{label}/") for id in ids)]


def _endless(part: Part, *, seed: int, shuffle: bool) -> Iterator[Task]:
    whole: Sequence[Task] = ()
    for number in count(1):
        if part.is_finite and shuffle:
            # The same in each pass, and a directory is slow to open.
            whole = whole or list(part.ask())
            order = random.Random(stable_seed("mixture", seed, part.label, number))
            tasks: Iterable[Task] = order.sample(whole, len(whole))
        else:
            tasks = part.ask()
        is_empty = True
        for task in tasks:
            is_empty = False
            named = with_source(task, part.label, is_named=part.is_named)
            yield named if number == 1 else replace(named, id=f"{named.id}#{number}")
        if is_empty:
            again = " again: give a list, or a function that makes them" if number > 1 else ""
            raise ConfigError(f"{part.label}, a part of the mixture, has no tasks{again}")
