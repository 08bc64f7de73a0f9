"""The answers that may reach a library which evaluates them as Python.

reasoning-gym 0.1.25 calls `eval`, or sympy's `parse_expr`, on the text of a model. A model that
learns to run code there can change the reward itself, so only what is read here is passed on.
"""

import ast
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

TRIGONOMETRY = ("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan")
FUNCTIONS = frozenset((*TRIGONOMETRY, "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs"))
CONSTANTS = frozenset(("C", "E", "pi"))
MAX_LENGTH = 400
MAX_NUMBER = 10**15
MAX_EXPONENT = 50
MAX_DEGREE = 100
"""Largest degree: number of factors of a product, or exponent of a power times the degree of its
base."""
_FORMULA = re.compile(r"[A-Za-z0-9+\-*/(). \n]+")
_NOT_DECIMAL = re.compile(r"[0-9][A-Za-z]")
"""1e-999999999 takes sympy forever."""
_WORDS = re.compile(r"[A-Za-z0-9_ \n]*")
_UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)


def is_arithmetic(said: str, data: Mapping[str, Any]) -> bool:
    """Whole numbers with + - * / and parentheses.

    >>> is_arithmetic("(1 + 2)*3", {"answer": ""}), is_arithmetic("9**9", {"answer": ""})
    (True, False)
    """
    return "." not in said and "**" not in said and _is_formula(said, data, names=(), functions=())


def is_formula(said: str, data: Mapping[str, Any]) -> bool:
    """A formula of the variables of the known answer, some functions, and bounded powers.

    >>> data = {"answer": "x**2 + C", "metadata": {}}
    >>> is_formula("x**2 + 1", data), is_formula("Integral(2*x, x)", data), is_formula("9**9**9", data)
    (True, False, False)
    """
    variables = re.findall(r"\b[A-Za-z]+\b(?!\()", str(data["answer"]))
    return _is_formula(said, data, names={*CONSTANTS, *variables}, functions=FUNCTIONS)


def is_literal(said: str, _: Mapping[str, Any]) -> bool:
    """Words and numbers, or a list of them: nothing that runs.

    >>> is_literal("[[0, 1]]", {}), is_literal("A B", {}), is_literal("[print(1)]", {})
    (True, True, False)
    """
    if _WORDS.fullmatch(said):
        return True
    try:
        return isinstance(ast.literal_eval(said), list)
    except _UNREADABLE:
        return False


def _is_formula(
    said: str, data: Mapping[str, Any], *, names: Collection[str], functions: Collection[str]
) -> bool:
    longest = max(MAX_LENGTH, 2 * len(str(data["answer"])))
    if len(said) > longest or not _FORMULA.fullmatch(said) or _NOT_DECIMAL.search(said):
        return False
    try:
        tree = ast.parse(said.strip(), mode="eval")
        return _degree(tree.body, names, functions) <= MAX_DEGREE
    except _UNREADABLE:
        return False


def _degree(node: ast.expr, names: Collection[str], functions: Collection[str]) -> float:
    """The degree of a formula; ValueError if it is not a formula."""
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("no number")
        case ast.Constant(value=int() | float() as value) if value < MAX_NUMBER:
            return 1.0
        case ast.Name(id=name) if name in names:
            return 1.0
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in functions:
            return _degree(argument, names, functions)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _degree(operand, names, functions)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _degree(base, names, functions) * max(1.0, _exponent(exponent))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return max(_degree(left, names, functions), _degree(right, names, functions))
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _degree(left, names, functions) + _degree(right, names, functions)
        case _:
            raise ValueError("no formula")


def _exponent(node: ast.expr) -> float:
    """The size of an exponent, which is a number or a fraction of numbers."""
    match node:
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _exponent(operand)
        case ast.BinOp(left=ast.Constant(), op=ast.Div(), right=ast.Constant(value=int(below))):
            size = _exponent(node.left) / max(1, below)
        case ast.Constant(value=int() | float() as value):
            size = float(value)
        case _:
            raise ValueError("no exponent")
    if not math.isfinite(size) or size > MAX_EXPONENT:
        raise ValueError("too large an exponent")
    return size
