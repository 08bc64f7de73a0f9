"""Typed reading of a request body: every field is honoured, accepted knowingly, or refused by name."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from areal_sdk.gateway.errors import bad_request

_T = TypeVar("_T")

LARGEST_INTEGER = 2**63 - 1
"""A larger one, such as 1e308, can be written into no reply and sent to no engine."""


class Fields:
    """A JSON object being read. `refuse_unknown` names what nobody asked for.

    A lenient one notes what it would refuse, and leaves it out.
    """

    def __init__(self, body: Any, *, lenient: bool = False) -> None:
        if not isinstance(body, dict):
            raise bad_request("the request body must be a JSON object")
        self.metadata: dict[str, Any] = {}
        """What the client sent that changes nothing here, by name."""
        self.notices: list[str] = []
        """What the client should know of fields that were left out."""
        self._body: Mapping[str, Any] = body
        self._known: set[str] = set()
        self._lenient = lenient

    def get(self, name: str) -> Any:
        """The value, or None where the field is missing or null."""
        self._known.add(name)
        return self._body.get(name)

    def accept(self, *names: str) -> None:
        """Fields that mean something to another provider and change nothing here: metadata."""
        self._known.update(names)
        given = {name: self._body.get(name) for name in names}
        self.metadata.update((name, value) for name, value in given.items() if value is not None)

    def accept_with_notice(self, *names: str) -> None:
        """Services of another provider: the answer is the policy's all the same."""
        self.accept(*names)
        given = (name for name in names if self._body.get(name) is not None)
        self.notices += (f"{name} has no effect here" for name in given)

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def mapping(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "an object")

    def items(self, name: str) -> list[Any] | None:
        return self._typed(name, list, "a list")

    def integer(self, name: str, *, least: int, most: int = LARGEST_INTEGER) -> int | None:
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, "an integer", value)
        _check_range(name, value, least, None if most == LARGEST_INTEGER >= value else most)
        return value

    def number(self, name: str, *, least: float, most: float | None = None) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(name, "a number", value)
        _check_range(name, value, least, most)
        return float(value)

    def choice(self, name: str, known: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in known:
            raise bad_request(
                f"{name} is {value!r}; known values: {', '.join(sorted(known))}", param=name
            )
        return value

    def refuse(self, name: str, why: str, *, unless: Collection[Any] = ()) -> None:
        """Leave this field out if the client set it to something other than its harmless values."""
        value = self.get(name)
        if value is not None and value not in unless:
            self.leave_out(f"{name} is not supported: {why}", param=name)
            self.metadata[name] = value

    def leave_out(self, why: str, *, param: str, code: str | None = None) -> None:
        """Refuse what cannot be honoured with a 400; a lenient request gets a notice instead."""
        if not self._lenient:
            raise bad_request(why, param=param, code=code)
        self.notices.append(f"left out: {why}")

    def refuse_unknown(self) -> None:
        for name in sorted(self._body.keys() - self._known):
            why = f"Unrecognized request argument supplied: {name}"
            self.leave_out(why, param=name, code="unknown_parameter")
            self.accept(name)

    def _typed(self, name: str, kind: type[_T], what: str) -> _T | None:
        value = self.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise _wrong_type(name, what, value)


def require(value: Any, name: str) -> Any:
    """`value`, or a 400 that names the missing field."""
    if value is None:
        raise bad_request(
            f"Missing required parameter: {name!r}", param=name, code="missing_required_parameter"
        )
    return value


def strings(values: Iterable[Any], name: str) -> tuple[str, ...]:
    found = tuple(values)
    if not all(isinstance(value, str) for value in found):
        raise bad_request(f"{name} must hold strings", param=name)
    return found


def _wrong_type(name: str, what: str, value: Any) -> Exception:
    kind = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}.get(
        type(value), "a number"
    )
    return bad_request(
        f"Invalid type for {name!r}: expected {what}, but got {kind} instead.",
        param=name,
        code="invalid_type",
    )


def _check_range(name: str, value: float, least: float, most: float | None) -> None:
    if value < least or (most is not None and value > most):
        expected = f"at least {least:g}" if most is None else f"between {least:g} and {most:g}"
        raise bad_request(
            f"Invalid {name!r}: {value} is out of range, expected {expected}.",
            param=name,
            code="invalid_value",
        )
