"""Conditions on episodes, as people write them: `reward < 0.5 and split == train`.

A condition compares fields with numbers, words and texts, and joins comparisons by `and`, `or` and
`not`. It is Python's syntax and nothing is ever evaluated: only the nodes named here are accepted.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, get_args, get_type_hints

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry import EpisodeSummary

Condition = Callable[[EpisodeSummary], bool]
_Value = Callable[[EpisodeSummary], Any]

MAX_LENGTH = 1000
_PLACES = ("file", "offset", "length", "turn_advantages")
_WORDS = {"true": True, "false": False, "none": None}
_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUAL: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_INSIDE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda part, whole: part in whole,
    ast.NotIn: lambda part, whole: part not in whole,
}


def _kind(hint: Any) -> type:
    """`str`, `float` or `bool`: how the values of a field are compared."""
    names = get_args(hint) or (hint,)
    if bool in names:
        return bool
    return str if any(issubclass(name, str) for name in names) else float


FIELDS: Mapping[str, type] = MappingProxyType(
    {
        name: _kind(hint)
        for name, hint in get_type_hints(EpisodeSummary).items()
        if name not in _PLACES
    }
)
"""The names that a condition may use, and how their values are compared."""


def parse_condition(text: str) -> Condition:
    """The condition that `text` states. ConfigError, with the cure, if `text` states none.

    If an episode lacks a value, such as the reward of a failed episode, comparisons of this value with
    another one are false, except `!=`; `== none` is true.

    >>> from areal_sdk.telemetry.episode_index import EpisodeSummary
    >>> one = EpisodeSummary("e", "t", "g", "train", 0.0, 3, 0.2, None, None, None, 2, 9, 1.5, "", 0, 0)
    >>> [parse_condition(t)(one) for t in ("reward < 0.5 and split == train", "success", "step == none")]
    [True, False, True]
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"a condition of {len(text)} characters: at most {MAX_LENGTH}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as exc:
        hint = ": write == to compare" if _has_single_equals(text) else ""
        raise ConfigError(
            f"{text!r} is not a condition{hint}; for example: reward < 0.5 and split == train"
        ) from exc
    return _Parser(text).truth(tree.body)


class _Parser:
    """Turns the nodes of a condition's syntax tree into functions of an episode."""

    def __init__(self, text: str) -> None:
        self._text = text

    def truth(self, node: ast.expr) -> Condition:
        """The function that says whether a node is true of an episode; ConfigError for a node that states nothing."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(value) for value in node.values]
            return _all(parts) if isinstance(node.op, ast.And) else _any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand)
            return lambda episode: not inner(episode)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Name):
            self._require_field(node.id)
            return lambda episode: bool(getattr(episode, node.id))
        self._refuse(node)

    def _comparison(self, node: ast.Compare) -> Condition:
        terms = [node.left, *node.comparators]
        links = [
            self._link(left, op, right)
            for left, op, right in zip(terms, node.ops, terms[1:], strict=False)
        ]
        return links[0] if len(links) == 1 else _all(links)

    def _link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        compare = {**_ORDER, **_EQUAL, **_INSIDE}.get(type(op))
        if compare is None:
            self._refuse(left, right)
        named = [side.id for side in (left, right) if isinstance(side, ast.Name)]
        known = [name for name in named if name in FIELDS]
        if not known:
            self._require_field(named[0] if named else repr(self._constant(left)))
        kind = FIELDS[known[0]] if type(op) not in _INSIDE else str
        first, second = self._value(left, kind), self._value(right, kind)
        lenient = type(op) in _EQUAL

        def holds(episode: EpisodeSummary) -> bool:
            a, b = first(episode), second(episode)
            if not lenient and (a is None or b is None):
                return False
            return compare(a, b)

        return holds

    def _value(self, node: ast.expr, kind: type) -> _Value:
        """The function that reads one side of a comparison: a field of the episode, or a number, a text or a word as it is."""
        if isinstance(node, ast.Name) and node.id in FIELDS:
            if FIELDS[node.id] is not kind:
                self._mismatch(node.id, kind)
            return operator.attrgetter(node.id)
        value = self._constant(node)
        if value is not None and not _is_of(value, kind):
            if isinstance(value, str) and isinstance(node, ast.Name):
                self._require_field(node.id)  # `reward < rewrad`: a field that is not there
            self._mismatch(repr(value), kind)
        return lambda episode: value

    def _constant(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return _WORDS.get(node.id.lower(), node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._constant(node.operand)
            if isinstance(value, (int, float)):
                return -value
        if isinstance(node, ast.Constant) and isinstance(
            node.value, (int, float, str, bool, type(None))
        ):
            return node.value
        self._refuse(node)

    def _require_field(self, name: str) -> None:
        if name not in FIELDS:
            raise ConfigError(f"{name!r} is no field of an episode; known: {', '.join(FIELDS)}")

    def _mismatch(self, what: str, kind: type) -> NoReturn:
        wanted = {float: "a number", str: "a text", bool: "true or false"}[kind]
        raise ConfigError(f"{self._text!r} compares {what} with {wanted}")

    def _refuse(self, *nodes: ast.expr) -> NoReturn:
        part = " ".join(ast.unparse(node) for node in nodes)
        raise ConfigError(
            f"{part!r} in a condition: compare a field with a number or a word, and put other text "
            'in quotes (task_id == "a-1")'
        )


# Loops in place of `all` and `any` with a generator: a condition is asked of every episode of a run.
def _all(parts: Sequence[Condition]) -> Condition:
    def holds(episode: EpisodeSummary) -> bool:
        for part in parts:  # noqa: SIM110
            if not part(episode):
                return False
        return True

    return holds


def _any(parts: Sequence[Condition]) -> Condition:
    def holds(episode: EpisodeSummary) -> bool:
        for part in parts:  # noqa: SIM110
            if part(episode):
                return True
        return False

    return holds


def _is_of(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _has_single_equals(text: str) -> bool:
    return any(
        text[i] == "=" and text[max(0, i - 1)] not in "=<>!" and text[i + 1 : i + 2] != "="
        for i in range(len(text))
    )
