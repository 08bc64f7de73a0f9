"""The loss curve and the books that a run wrote."""

from pathlib import Path
from typing import Any

from tests.loop.runs import (
    run_dir,
)


def check_books(directory: Path, *, trained: int | None = None) -> None:
    """Every episode that began is in the ledger once, and is trained once at most."""
    books = run_dir(directory).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped
    assert books["running"] == 0
    if trained is not None:
        assert books["trained"] == trained
    ended = [(e.id, e.dropped) for e in run_dir(directory).list_episodes() if e.split == "train"]
    assert len(set(ended)) == len(ended), "an episode is in the records twice"


STEPS = 8
DETERMINISTIC: dict[str, Any] = {
    "run__deterministic": True,
    "run__steps": STEPS,
    "run__checkpoint_every": 1,
    "rollout__batch": 16,
}


def curve(directory: Path) -> dict[int, set[tuple[float, float]]]:
    """(loss, gradient norm) by step: one value each, however often the step was taken."""
    found: dict[int, set[tuple[float, float]]] = {}
    for row in run_dir(directory).read_metrics(kind="step"):
        found.setdefault(row["step"], set()).add((row["train/loss"], row["train/grad_norm"]))
    return found
