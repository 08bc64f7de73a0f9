"""`Finding`: the result of one check, of this machine or of a model."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """It works, but there is something to know."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    check: str
    found: str
    cure: str = ""
