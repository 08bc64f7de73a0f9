"""The files of a mirror.

mirror.json                      {"id": ..., "writer": ...}: a mirror is here, of which run, and who writes to it
config.toml, metrics.jsonl, ...  the files of the run directory
episodes/, tokens/, model/       the same
checkpoints/NAME.json            {"folder": ..., "files": {...}, "crc32": ...}: the checkpoint or the exported
                                 weights NAME are whole. It is written last, and removed first
checkpoints/NAME.9ae04c11/       their files. The number is a checksum, so that new weights of a name never
                                 mix with old ones

The parts of a run directory that are there are those of `areal_sdk.records.list_weights` and `list_files`.
"""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from areal_sdk.errors import DamagedError
from areal_sdk_mirror.store import Store

SIGN = "mirror.json"
"""File by which the core, too, knows a mirror (`areal_sdk.telemetry.directories.is_mirror`)."""
ID_FILE = "id.json"
"""File in the run directory with the directory's own `Sign`. It stays there, since the mirror has `mirror.json`."""
CHECKPOINTS = "checkpoints"
MARKER = ".json"


@dataclass(frozen=True, slots=True)
class Whole:
    """A directory of `checkpoints` that is whole at the mirror."""

    name: str
    folder: str
    files: Mapping[str, Any]
    """Sizes and checksums of the files, from `describe`."""

    @classmethod
    def of(cls, name: str, files: Mapping[str, Any]) -> Self:
        return cls(name, f"{CHECKPOINTS}/{name}.{checksum_of(files)}", files)

    @property
    def marker(self) -> str:
        return f"{CHECKPOINTS}/{self.name}{MARKER}"

    def to_json(self) -> bytes:
        crc = checksum_of(self.files)
        return json.dumps({"folder": self.folder, "files": self.files, "crc32": crc}).encode()

    @classmethod
    def read(cls, store: Store, name: str) -> Self | None:
        """The checkpoint `name`; None if there is none. `DamagedError` if its marker has changed since it was written."""
        marker = f"{CHECKPOINTS}/{name}{MARKER}"
        content = store.read(marker)
        if content is None:
            return None
        try:
            values = json.loads(content)
            found = cls(name, values["folder"], values["files"])
            if checksum_of(found.files) == values["crc32"]:
                return found
        except (ValueError, KeyError, TypeError):
            pass
        raise DamagedError(f"{store.at(marker)} has changed since it was written")


def names_there(store: Store) -> list[str]:
    """The names of the directories that are whole at the mirror."""
    there = store.sizes(CHECKPOINTS)
    return sorted(name.removesuffix(MARKER) for name in there if name.endswith(MARKER))


def step_of(name: str) -> int | None:
    """The step of a checkpoint from which a run goes on; None for other weights.

    >>> step_of("step-000020"), step_of("best")
    (20, None)
    """
    match = re.fullmatch(r"step-(\d+)", name)
    return int(match[1]) if match else None


def checksum_of(values: Any) -> str:
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


class TakenOverError(Exception):
    """The mirror was taken over: another run, or this run on another machine, writes to it now."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Says whose a mirror is. A process that begins to write draws a new `writer`, so that an earlier writer sees
    that its turn is over."""

    id: str
    """Id of the run."""
    writer: str = ""
    before: str | None = None
    """The writer before: a run that was killed while it took the mirror may take it again."""

    @classmethod
    def of(cls, values: Any) -> Self:
        return cls(str(values["id"]), str(values.get("writer", "")), values.get("before"))

    def to_json(self) -> bytes:
        return json.dumps({"id": self.id, "writer": self.writer, "before": self.before}).encode()

    def may_follow(self, there: "Sign") -> bool:
        """Whether the owner of this sign was the last writer of the mirror with the sign `there`."""
        return there.id == self.id and there.writer in (self.writer, self.before)


def read_sign(store: Store) -> Sign | None:
    """The sign of the run whose mirror is at `store`; None if there is none."""
    content = store.read(SIGN)
    if content is None:
        return None
    try:
        return Sign.of(json.loads(content))
    except (ValueError, KeyError, TypeError) as exc:
        raise DamagedError(f"{store.at(SIGN)} has changed since it was written") from exc
