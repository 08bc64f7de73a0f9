r"""Reading and comparing answers: pure functions, no evaluation of what a model wrote."""

import re
from fractions import Fraction

_TOKEN = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_NUMBER_IN_TEXT = re.compile(
    r"(?<![\w.,])-?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:/\d+)?%?"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_DECORATION = re.compile(r"\\(?:left|right|!|,|;|:|quad|qquad)(?![a-zA-Z])|\\?\$")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\s*\{([^{}]*)\}")
MAX_DIGITS = 400
"""Longer numbers are compared as text: converting them costs quadratic time."""


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, braces balanced.

    >>> last_boxed(r"so \boxed{1}, no: \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> last_boxed(r"cut off \boxed{1") is None
    True
    """
    best: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # where a box's content starts; None for other braces
    for token in _TOKEN.finditer(text):
        if token[0] == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None and (best is None or start > best[0]):
                best = (start, token.start())
        elif token[0].endswith("{") and token[0] != r"\{":
            open_braces.append(token.end() if len(token[0]) > 1 else None)
    return text[slice(*best)] if best else None


def last_number(text: str) -> str | None:
    """The last number, with its sign, thousands and percent sign; None without one.

    >>> last_number("not 3. It costs $1,250.50, sir."), last_number("in 2-3 days"), last_number("none")
    ('1,250.50', '3', None)
    >>> last_number("so it is -12%.")
    '-12%'
    """
    found = None
    for found in _NUMBER_IN_TEXT.finditer(text):  # noqa: B007 - the last one is meant
        pass
    return found[0] if found else None


def final_answer(solution: str) -> str:
    """What follows the last `####`, as in GSM8K's solutions; else all of it.

    >>> final_answer("2 + 2 = 4\\n#### 4"), final_answer("4")
    ('4', '4')
    """
    return solution.rpartition("####")[2].strip()


def same_answer(said: str, expected: str) -> bool:
    r"""Whether two answers mean the same, as numbers or else as normalised text.

    >>> same_answer(r"\frac{1}{2}", "0.5"), same_answer("1,000", "1000"), same_answer("x+1", "x + 1")
    (True, True, True)
    >>> same_answer("12", "1.2")
    False
    """
    said, expected = normalise(said), normalise(expected)
    if said == expected:
        return True
    numbers = as_number(said), as_number(expected)
    return None not in numbers and numbers[0] == numbers[1]


def normalise(answer: str) -> str:
    """The answer without white space, decoration and a final full stop."""
    answer = _TEXT.sub(r"\1", _DECORATION.sub("", answer))
    answer = _FRACTION.sub(r"(\1)/(\2)", answer)
    answer = "".join(answer.split()).removesuffix(".").lower()
    return _THOUSANDS.sub("", answer)


def as_number(answer: str) -> Fraction | None:
    """The exact value of a number, a fraction of two, or a percentage; None for anything else."""
    if len(answer) > MAX_DIGITS:
        return None
    percent = re.fullmatch(r"(.*?)\\?%", answer)
    if percent:
        value = as_number(percent[1])
        return None if value is None else value / 100
    top, slash, bottom = answer.partition("/")
    numerator = _parse(top)
    if not slash or numerator is None:
        return numerator
    denominator = _parse(bottom)
    return numerator / denominator if denominator else None


def _parse(text: str) -> Fraction | None:
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return Fraction(text) if _NUMBER.fullmatch(text) else None
