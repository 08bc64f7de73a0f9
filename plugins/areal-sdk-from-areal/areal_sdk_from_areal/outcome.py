"""The outcome of one key of AReaL, and the rules that decide the outcome."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = Any
Keys = Mapping[str, JSON]
"""AReaL's keys with dots, and their values."""


class Kind(StrEnum):
    TRANSLATED = "translated"
    NOT_APPLICABLE = "not applicable"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    kind: Kind
    settings: Mapping[str, JSON] = field(default_factory=dict)
    """The settings of areal-sdk, as dotted keys, that the setting is translated to."""
    why: str = ""


Rule = Callable[[JSON, Keys], KeyOutcome]
"""The outcome of a value, given all keys of the file."""


def becomes(settings: Mapping[str, JSON], why: str = "") -> KeyOutcome:
    return KeyOutcome(Kind.TRANSLATED, settings, why)


def not_applicable(why: str) -> KeyOutcome:
    return KeyOutcome(Kind.NOT_APPLICABLE, why=why)


def not_supported(why: str) -> KeyOutcome:
    return KeyOutcome(Kind.NOT_SUPPORTED, why=why)


def to(key: str, convert: Callable[[JSON], JSON] = lambda value: value) -> Rule:
    """The value moves to `key`."""
    return lambda value, _keys: becomes({key: convert(value)})


def never(why: str) -> Rule:
    """Nothing here corresponds to the key, whatever its value."""
    return lambda _value, _keys: not_applicable(why)


def only(wanted: JSON, same: str, otherwise: str) -> Rule:
    """The rule of a key of which areal-sdk does one value: `same` says how. `otherwise` is the way out for others."""
    return lambda value, _keys: (
        not_applicable(same) if value == wanted else not_supported(otherwise)
    )
