"""Plain values between the process of the tests and the process of the solution.

Nothing that arrives can run code: a value is built from types of Python itself. Everything else stays
where it is, and is known by a number.
"""

import json
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, BinaryIO

MAX_DEPTH = 100
MAX_BYTES = 16 << 20
"""Largest size of one message in bytes. A solution that answers with more gives no answer."""


class NotPlainError(TypeError):
    """The value cannot be sent."""


def encode(
    value: Any,
    keep: Callable[[Any], int] | None = None,
    depth: int = 0,
    *,
    unpacks_arrays: bool = False,
) -> Any:
    """`value` for JSON. Objects that are not plain are given to `keep`, which returns their number. An object whose
    class derives from a plain one (an `Enum` of texts, a subclass of `int`) is sent as the plain value.

    `unpacks_arrays`: numpy's arrays and numbers are sent as lists and numbers of Python.

    >>> decode(encode({(1, 2): {3.5, None}, "a": [b"x"]}))
    {(1, 2): {None, 3.5}, 'a': [b'x']}
    """
    if depth > MAX_DEPTH:
        raise NotPlainError(f"a value nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}

    def inner(items: Any) -> list[Any]:
        return [encode(item, keep, depth + 1, unpacks_arrays=unpacks_arrays) for item in items]

    for name, mapping in _MAPPINGS.items():
        if isinstance(value, mapping):
            return {name: [inner(pair) for pair in value.items()]}
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return {"namedtuple": [kind.__name__, list(kind._fields), inner(value)]}
    for name, container in _CONTAINERS.items():
        if isinstance(value, container):
            return {name: inner(value)}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind in (Decimal, Fraction):
        return {kind.__name__: str(value)}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind in (date, datetime, time):
        return {kind.__name__: value.isoformat()}
    if kind is timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    for base, copied in _COPIES.items():
        if isinstance(value, base):
            return encode(copied(value))
    if unpacks_arrays and kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), keep, depth + 1)
    if keep is not None:
        return {"object": keep(value), "type": str(kind.__name__)}
    raise NotPlainError(f"a {kind.__name__} is not plain data")


_CONTAINERS: dict[str, type] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_COPIES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,  # of the base: a class may define its own
    int: int.__int__,
    float: float.__pos__,
    bytes: lambda value: bytes(memoryview(value)),
}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "Decimal": Decimal,
    "Fraction": Fraction,
    "range": lambda parts: range(*parts),
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda parts: timedelta(*parts),
}
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "dict": dict,
}
"""A class before its base."""


def decode(form: Any, remote: Callable[[int, str], Any] | None = None, depth: int = 0) -> Any:
    """The value of `encode`; ValueError or TypeError for anything that `encode` never makes."""
    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if depth > MAX_DEPTH or not isinstance(form, dict) or not form:
        raise ValueError("not a value")
    if "object" in form and remote is not None:
        return remote(int(form["object"]), str(form["type"]))
    ((name, content),) = form.items()
    if name in _SCALARS:
        return _SCALARS[name](content)
    if name in _MAPPINGS:
        pairs = (decode({"list": pair}, remote, depth + 1) for pair in content)
        found = {key: value for key, value in pairs}  # noqa: C416 - a pair of another length is refused
        return _MAPPINGS[name](found)
    if name == "namedtuple":
        title, names, items = content
        values = [decode(item, remote, depth + 1) for item in items]
        if any(isinstance(item, dict) and "object" in item for item in items):
            return tuple(values)  # such a field could pass for a method of a text or a list
        return namedtuple(str(title), [str(one) for one in names], rename=True)(*values)
    return _CONTAINERS[name](decode(item, remote, depth + 1) for item in content)


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None once the other side is gone. ValueError if it is malformed."""
    line = stream.readline(MAX_BYTES + 1)
    if not line:
        return None
    if len(line) > MAX_BYTES:
        raise ValueError(f"an answer of more than {MAX_BYTES >> 20} MiB")
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("an answer that is nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("an answer that is no message")
    return message
