"""The rows that a run began with. A resumed run finds them again by their contents, wherever they are now.

The order of the steps and the reference of `dpo` name rows by their place. Without this record, a row that was added
or moved in a file would change the rest of the run.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from areal_sdk.errors import ConfigError
from areal_sdk.finetune.objectives import FinetuneObjective, Reference
from areal_sdk.finetune.rendering import TokenPair
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.files import read_json, to_json, write_atomically
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.trainer import Demonstration

DATA_FILE = "data.json"


@dataclass(frozen=True, slots=True)
class BegunWith:
    """The data of a run at its beginning."""

    rows: list[str]
    """Digests, in the order in which the rows were read."""
    held_out: list[str]
    reference: Reference
    """Figures that the objective found before the first step: those of the rows, then those of the held-out rows."""

    @classmethod
    def of(cls, objective: FinetuneObjective, reference: Reference) -> Self:
        rows, held_out = map(digests, (objective.rows, objective.held_out))
        return cls(rows, held_out, reference)

    @classmethod
    def read(cls, run_dir: RunDir) -> Self:
        """The record of a run. ConfigError if the run has none."""
        known = read_json(_path(run_dir))
        if known is None:
            raise ConfigError(
                f"{run_dir.path} has no {DATA_FILE}, which names the rows that it began with: begin another run "
                "(--init-from takes the weights of this one)"
            )
        return cls(**known)

    def write(self, run_dir: RunDir) -> None:
        write_atomically(_path(run_dir), to_json(asdict(self)))

    def find_in(self, objective: FinetuneObjective) -> tuple[FinetuneObjective, str | None]:
        """The objective with the rows of the beginning, in their order; and a note about rows that were added.

        ConfigError if some of the rows are gone.
        """
        rows, held_out = (
            _places(known, digests(now), what)
            for known, now, what in (
                (self.rows, objective.rows, "rows"),
                (self.held_out, objective.held_out, "held-out rows"),
            )
        )
        num_added = len(objective.rows) + len(objective.held_out) - len(rows) - len(held_out)
        note = (
            f"{counted(num_added, 'row')} of the data came after the beginning of the run, and are left out: a run "
            "keeps its rows. To learn from them, begin another run (--init-from takes the weights of this one)"
        )
        return objective.with_rows(rows, held_out), note if num_added else None


def _path(run_dir: RunDir) -> Path:
    return run_dir.path / DATA_FILE


def digests(rows: Sequence[Demonstration | TokenPair]) -> list[str]:
    """A digest of each row, from its tokens and from the mask of its trained tokens."""
    return [_digest(row) for row in rows]


def _digest(row: Demonstration | TokenPair) -> str:
    found = blake2b(digest_size=8)
    for part in (row,) if isinstance(row, Demonstration) else (row.chosen, row.rejected):
        found.update(len(part.tokens).to_bytes(8, "little"))
        found.update(np.asarray(part.tokens, np.int64).tobytes())
        found.update(np.asarray(part.loss_mask, np.bool_).tobytes())
    return found.hexdigest()


def _places(known: Sequence[str], now: Sequence[str], what: str) -> list[int]:
    """The place in `now` of each row of `known`. Equal rows keep their order.

    >>> _places(["a", "b", "a"], ["b", "a", "c", "a"], "rows")
    [1, 0, 3]
    """
    places: dict[str, deque[int]] = defaultdict(deque)
    for place, digest in enumerate(now):
        places[digest].append(place)
    found = [places[digest].popleft() for digest in known if places[digest]]
    if len(found) < len(known):
        raise ConfigError(
            f"{len(known) - len(found)} of the {len(known)} {what} that the run began with are gone from its data "
            "(finetune.data, finetune.eval_data), or are other tokens now: put them back, or begin another run "
            "(--init-from takes the weights of this one)"
        )
    return found
