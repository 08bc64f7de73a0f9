"""Options of plugins and algorithms: the keyword parameters they declare, checked like settings."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from areal_sdk.errors import ConfigError, PluginError


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword parameter that may be set from the configuration."""

    name: str
    annotation: Any
    default: object
    """`inspect.Parameter.empty` when it must be given."""

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def type_name(self) -> str:
        if self.annotation is Any:
            return "any"
        plain = self.annotation
        while get_origin(plain) is Annotated:
            plain = get_args(plain)[0]
        return inspect.formatannotation(plain).removeprefix("typing.")


def list_options(item: Callable[..., object], *, skip: int = 0) -> list[Option]:
    """The options of a class (parameters of `__init__`), or of a function after `skip` arguments."""
    target = item.__init__ if inspect.isclass(item) else item
    if target is object.__init__:
        return []
    try:
        parameters = list(inspect.signature(item).parameters.values())[skip:]
        hints = _parameter_types(_annotated(target))
    except (NameError, TypeError, ValueError) as exc:
        raise PluginError(f"cannot read the options of {_name(item)}: {exc}") from exc
    return [
        Option(p.name, hints.get(p.name, Any), p.default)
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]


def validate_options(
    item: Callable[..., object],
    options: Mapping[str, object],
    *,
    table: str,
    skip: int = 0,
) -> dict[str, object]:
    """`options` converted to what `item` declares; `table` is where the user wrote them."""
    declared = {option.name: option for option in list_options(item, skip=skip)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(item).parameters.values())
    values: dict[str, object] = {}
    for name, value in options.items():
        if name in declared:
            values[name] = _convert(declared[name], value, table)
        elif takes_any:
            values[name] = value
        else:
            raise ConfigError(_unknown(name, list(declared), table))
    for option in declared.values():
        if option.is_required and option.name not in values:
            raise ConfigError(_missing(option, item, table))
    return values


def _missing(option: Option, item: Callable[..., object], table: str) -> str:
    message = f"[{table}] needs {option.name} ({option.type_name})"
    declared = inspect.signature(item).parameters[option.name]
    if declared.kind is declared.POSITIONAL_OR_KEYWORD:
        if table.startswith(
            "reward."
        ):  # probably written for another library: (prompt, completion)
            message += (
                ": a reward takes (episode, *, options), so this is an option that was not set"
            )
        elif table.startswith("algorithm."):  # written for an earlier version: preset(knobs)
            message += (
                f": a preset takes its options as keyword parameters, as in "
                f"{_name(item)}(*, scale: float = 1.0), and passes to grpo what grpo needs"
            )
    return message


def _convert(option: Option, value: object, table: str) -> object:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[object] = TypeAdapter(option.annotation)
    except PydanticUserError as exc:
        raise PluginError(
            f"[{table}] {option.name} cannot be set from a configuration: no value of "
            f"{option.type_name} can be written there"
        ) from exc
    try:
        return adapter.validate_python(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join([option.name, *(str(part) for part in first["loc"])])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"[{table}] {where} = {first['input']!r}: {message[0].lower()}{message[1:]}"
        ) from None


def _unknown(name: str, declared: list[str], table: str) -> str:
    if not declared:
        return f"[{table}] has no option {name!r}: it takes none"
    if near := difflib.get_close_matches(name, declared, n=1):
        return f"[{table}] has no option {name!r}: did you mean {near[0]!r}?"
    return f"[{table}] has no option {name!r}; known: {', '.join(declared)}"


def _parameter_types(target: Callable[..., object]) -> dict[str, Any]:
    """The types of a function's parameters. Its return type is not resolved: it may exist for type checkers only."""
    annotations = getattr(target, "__annotations__", {})
    types = {name: type_ for name, type_ in annotations.items() if name != "return"}
    return get_type_hints(
        SimpleNamespace(__annotations__=types),
        globalns=getattr(target, "__globals__", {}),
        include_extras=True,
    )


def _annotated(target: Callable[..., object]) -> Callable[..., object]:
    """The object that carries the annotations: an instance with `__call__` carries them on its class."""
    if isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    return target if inspect.isroutine(target) else type(target).__call__


def _name(item: object) -> str:
    return getattr(item, "__qualname__", type(item).__qualname__)
