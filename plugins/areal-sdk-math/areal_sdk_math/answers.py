r"""Reading and comparing answers: pure functions, no evaluation of what a model wrote."""

import re
from fractions import Fraction

_TOKEN = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_MINUS = "\u2212"
_SEPARATORS = ",\u00a0\u2009\u202f"
"""A comma, and spaces at which no line breaks: 1,234,567 is one number, and 1,2,3 and 12,34 are lists."""
_THOUSANDS = (
    rf"(?<!\d[{_SEPARATORS}])(?<!\d)[1-9]\d{{0,2}}(?P<separator>[{_SEPARATORS}])\d{{3}}"
    r"(?:(?P=separator)\d{3})*(?!\d|(?P=separator)\d)"
)
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![\w.])[-{_MINUS}]?(?:{_THOUSANDS}|\d+)(?:\.\d+)?(?:[eE][-+]?\d{{1,3}})?(?:/\d+)?(?:\\?%)?"
)
_GROUPED = re.compile(rf"(?<!\.){_THOUSANDS}")
_BRACKET = re.compile(r"[(\[]|\\\{")
_DECORATION = re.compile(r"\\(?:left|right|,|;|:|quad|qquad)(?![a-zA-Z])|\\?\$")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf)\s*\{([^{}]*)\}")
MAX_DIGITS = 400
"""Largest number of digits to convert. Longer numbers are compared as text: converting them costs
quadratic time."""


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
    >>> last_number("so it is -12%."), last_number("the pair (3,4)"), last_number("1,2,3")
    ('-12%', '4', '3')
    """
    found = None
    for found in _NUMBER_IN_TEXT.finditer(text):  # noqa: B007 - the last one is meant
        pass
    return found[0] if found else None


def final_answer(solution: str) -> str:
    """The text after the last `####`, as in GSM8K's solutions; else all of it.

    >>> final_answer("2 + 2 = 4\\n#### 4"), final_answer("4")
    ('4', '4')
    """
    return solution.rpartition("####")[2].strip()


def same_answer(said: str, expected: str) -> bool:
    r"""Whether two answers mean the same, as numbers or else as normalised text.

    >>> same_answer(r"\frac{1}{2}", "0.5"), same_answer("1,000", "1000"), same_answer("x+1", "x + 1")
    (True, True, True)
    >>> same_answer("12", "1.2"), same_answer("(1,100)", "1100"), same_answer("50%", "50")
    (False, False, True)
    """
    said, expected = _plain(said), _plain(expected)
    if _compact(said) == _compact(expected):
        return True
    said, expected = _compact(_ungrouped(said)), _compact(_ungrouped(expected))
    if said == expected:
        return True
    value = as_number(expected)
    if value is None:
        return False
    # Where the expected answer has no percent sign, its number may be the percentage or the share.
    is_percent = said.endswith("%") and not expected.endswith("%")
    bare = said.removesuffix("%").removesuffix("\\") if is_percent else said
    return value in (as_number(said), as_number(bare))


def _plain(answer: str) -> str:
    """The answer without decoration."""
    answer = answer.replace(_MINUS, "-").replace(r"\!", "")
    return _TEXT.sub(r"\1", _DECORATION.sub(" ", answer))


def _ungrouped(answer: str) -> str:
    """The answer with thousands as one number; in brackets a comma is between two."""
    if _BRACKET.search(answer):
        return answer
    return _GROUPED.sub(lambda found: found[0].replace(found["separator"], ""), answer)


def _compact(answer: str) -> str:
    """The answer without white space and a final full stop, fractions with a slash."""
    answer = _FRACTION.sub(r"(\1)/(\2)", answer)
    return "".join(answer.split()).removesuffix(".").lower()


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
    sign, bare = (-1, text[1:]) if text.startswith("-(") else (1, text)
    bare = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    return sign * Fraction(bare) if _NUMBER.fullmatch(bare) else None
