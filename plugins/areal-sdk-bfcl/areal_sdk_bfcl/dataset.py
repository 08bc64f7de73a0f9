"""Tasks: BFCL's multi-turn entries, or their first turns."""

from collections.abc import Iterator

from areal_sdk import ConfigError, Task
from areal_sdk.environment import is_held_out
from areal_sdk_bfcl.entries import CATEGORIES, entries


def tasks(
    split: str,
    *,
    categories: str | list[str] = "base",
    turns: int = 0,
    calls: int = 0,
    held_out: float = 0.25,
) -> Iterator[Task]:
    """The entries of the categories, in BFCL's order.

    categories: base, miss_func, miss_param, long_context, several of them, or "all". An entry of the same number
        has nearly the same requests in each category, so all four are in one split.
    turns: the number of turns to play; entries with fewer, or with none in these that BFCL judges, are left out; 0: all
        turns.
    calls: most calls of a turn; entries whose known solution has a turn with more, or with none, are left out; 0: all.
    held_out: the share that is for evaluations; with 1.0, all entries are.
    """
    if turns < 0 or calls < 0:
        raise ConfigError(f"turns = {turns}, calls = {calls}: give 0, for no limit, or more")
    for category in _known(categories):
        for one in entries(category).values():
            played = one.truth[: turns or None]
            too_short = turns > len(one.truth)
            too_hard = calls and not all(0 < len(known) <= calls for known in played)
            key = f"bfcl {one.id.rpartition('_')[2]}"
            if (
                too_short
                or too_hard
                or not any(played)
                or is_held_out(key, held_out) == (split == "train")
            ):
                continue
            data: dict[str, object] = {"entry": one.id, "family": category}
            if turns:
                data["turns"] = turns
            yield Task(f"{one.id}/{turns}" if turns else one.id, data)


def _known(categories: str | list[str]) -> list[str]:
    if categories == "all":
        return list(CATEGORIES)
    names = [categories] if isinstance(categories, str) else categories
    for name in names:
        if name not in CATEGORIES:
            raise ConfigError(f"BFCL has no category {name!r}; it has {', '.join(CATEGORIES)}, all")
    return names
