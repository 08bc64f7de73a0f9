"""Small changes of one function, as programmers make them by mistake. The rest of the file stays as it is, to the byte."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.FloorDiv,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source file with one change."""

    function: str
    """The changed function, with the classes and functions around it."""
    line: int
    kind: str
    source: str


def mutants_of(source: str) -> Iterator[Mutant]:
    """All changes of the functions of a file, in the order of the file.

    >>> [one.source for one in mutants_of("def f(a):\\n    return a + 1  # next\\n")]
    ['def f(a):\\n    return a - 1  # next\\n', 'def f(a):\\n    return a + 2  # next\\n']
    """
    starts = [0]
    raw = source.encode()
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, node in _sites(ast.parse(source), ()):
        for kind, changed in _changes(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            found = (raw[:start] + ast.unparse(changed).encode() + raw[end:]).decode()
            if _is_the_change(found, source):
                yield Mutant(function, node.lineno, kind, found)


def _sites(tree: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """The expressions in functions, each with the name of its function. Defaults and decorators are none of them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = (*names, node.name)
            for statement in node.body:
                yield from _sites_below(statement, inside)
        elif isinstance(node, ast.ClassDef):
            yield from _sites(node, (*names, node.name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _sites(node, names)


def _sites_below(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from _sites(ast.Module([node], []), names)
        return
    if isinstance(node, ast.JoinedStr):  # the places in an f-string are not those of the file
        return
    if isinstance(node, ast.expr):
        yield ".".join(names), node
    for child in ast.iter_child_nodes(node):
        yield from _sites_below(child, names)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            changed = copy.deepcopy(node)
            changed.ops = [_COMPARED[type(op)]()]
            yield "comparison", changed
        case ast.BinOp(op=op) if type(op) in _COMPUTED:
            binary = copy.deepcopy(node)
            binary.op = _COMPUTED[type(op)]()
            yield "arithmetic", binary
        case ast.BoolOp(op=op):
            logic = copy.deepcopy(node)
            logic.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "logic", logic
        case ast.UnaryOp(op=ast.Not()):
            yield "negation", node.operand
        case ast.IfExp():
            yield "branches", ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case _:
            return


def _is_the_change(changed: str, source: str) -> bool:
    """Whether the text still parses, and is another program."""
    try:
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False
