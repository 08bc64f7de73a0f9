"""Code: write a Python expression for a sentence about x. For smollm2."""

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

SENTENCES = {
    "+": ("x plus {}", "{} more than x"),
    "-": ("x minus {}", "{} less than x"),
    "*": ("x times {}", "the product of x and {}"),
}
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
LONGEST = 40
"""Characters of an answer."""


class Expression(Environment):
    """Success is an expression that has the right value for three values of x."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.expected: str = task.data["expression"]
        text = f"Write a Python expression for: {task.data['sentence']}. Write the expression only."
        return [{"role": "user", "content": text}]

    async def step(self, message: Message) -> StepResult:
        is_right = values(message.get("content") or "") == values(self.expected)
        return StepResult(reward=float(is_right), done=True, success=is_right)


def values(text: str) -> list[int] | None:
    """The values for x = 2, 7 and 11; None for what is no sum, difference or product of x and numbers.

    >>> values("x * 3"), values("import os")
    ([6, 21, 33], None)
    """
    try:
        body = ast.parse(text.strip()[:LONGEST], mode="eval").body
        return [value(body, x) for x in (2, 7, 11)]
    except (ValueError, SyntaxError, RecursionError):
        return None


def value(node: ast.expr, x: int) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id="x"):
            return x
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value(left, x), value(right, x))
    raise ValueError(ast.dump(node))


def tasks(split: str) -> Iterator[Task]:
    """Every seventh sentence is held out."""
    found = product(SENTENCES.items(), range(2), range(2, 60))
    for number, ((symbol, sentences), which, constant) in enumerate(found):
        if (number % 7 == 0) == (split == "eval"):
            data = {
                "sentence": sentences[which].format(constant),
                "expression": f"x {symbol} {constant}",
            }
            yield Task(id=data["sentence"], data=data)
