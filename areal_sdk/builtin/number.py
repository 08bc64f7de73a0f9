"""Reads the last number of a text, as people and models write numbers.

A text is first rewritten so that each number has one form. A number inside an expression is not the value of the
expression, so it does not count. The characters next to a number tell whether it is inside one.
"""

import math
import re
from collections.abc import Callable

_MINUS = "-\u2212\u2013"
_SIGN, _CURRENCY = f"[{_MINUS}+]", r"\\?[$€£¥]"
_UNSIGNED = (
    r"(?:(?:(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
"""Digits with a comma at each thousand or at none: 1,234,567 is one number, 1,2,3 and 12,34 are lists."""
_ARGUMENT = rf" ?(?:\{{ ?({_SIGN}?{_UNSIGNED}) ?\}}|(\d))"
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # 1{,}000, 1,\!000, 1\,000 and 1 000
    (
        re.compile(
            r"(?<![\w.,])[1-9]\d{0,2}(\{,\}|,\\!|\\,|[ \u00a0\u202f])\d{3}(?:\1\d{3})*(?!\d)"
        ),
        lambda found: found[0].replace(found[1], ""),
    ),
    # brackets that LaTeX sizes, and emphasis
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"(?<!\w)(_{1,2})(?=[\w.$-]*\d\1(?!\w))([\w.$-]+)\1"), r"\2"),
    # 5 million is 5e6
    (
        re.compile(
            r"(?<![\w./,])(\d[\d,]*(?:\.\d+)?) (hundred|thousand|million|billion|trillion)s?\b"
        ),
        lambda found: f"{found[1]}e{_POWERS[found[2]]}",
    ),
    # a bullet of a list is no minus
    (re.compile(r"(?<=\n)[-+] "), ""),
    # a range of prices: 3-$5
    (re.compile(rf"(?<=\d)[{_MINUS}](?={_CURRENCY})"), " to "),
    # the power of a unit: 25 cm^2, 5 m^{2}, 9.8 m/s^2, 25\text{ cm}^2
    (
        re.compile(
            r"(\d(?:\\[,;])? ?(?:\\(?:text|mathrm)\{ ?)?"
            r"(?:(?<=[ {,;])(?:m|s|m/s)|[mcdk]m|in|ft|yd|mi|units?|inches|feet|met(?:er|re)s)\}?) ?\^ ?(?:[23]\b|\{[23]\})"
        ),
        r"\1",
    ),
    (re.compile(r" ?\^ ?(?:\\circ|\{ ?\\circ ?\})"), "°"),
    # \frac{-1}{2} is -1/2, and after a digit it is half of a mixed number
    (re.compile(r"(?<=\w)(?=\\[dt]?frac)"), " "),
    (re.compile(rf"\\[dt]?frac{_ARGUMENT}{_ARGUMENT}"), r"\1\2/\3\4"),
]
_INTEGER = rf"{_SIGN}?\d{{1,6}}(?!\.?\d)"
_EXPONENT = rf" ?\^ ?(?:\{{ ?({_INTEGER}) ?\}}|\( ?({_INTEGER}) ?\)|({_INTEGER}))"
"""Exponent as in 2^10, 2^(10) and 10^{-3}. If the power is no integer, its `^` stays behind the number."""
_TIMES = r"(?:[x\u00d7*]|\\times|\\cdot)"
_NUMBER = re.compile(
    rf"((?:(?<![\w.]){_SIGN} ?)?)(?<![\w.])(?:{_CURRENCY})?({_UNSIGNED})"
    rf"(?:{_EXPONENT}| ?{_TIMES} ?10{_EXPONENT}| ?/ ?({_SIGN}?{_UNSIGNED}))?"
)
_COMES_BEFORE = re.compile(
    rf"""(?:
      [\^_][ ]?[{{(]?                                               # an exponent or an index
    | (?:sqrt(?:\[\d+\])?|√|\\overline)[ ]?[{{(]?
    | (?<![A-Za-z])(?:log|ln|sin|cos|tan)(?:_\w|_\{{\w+\}})?[ ]?[({{]?
    | [\w)}}]\(                                                   # f(2), 3(2)
    | {_SIGN}{_SIGN}
    | \}}[ ]?\{{                                                  # \frac{{x}}{{2}}
    | [\d)}}](?:{_SIGN}|[ ]{_SIGN}[ ]) | \d[ ]{_SIGN}             # 10 - 4
    | [\d)}}](?:\*{{1,2}}|[x\u00d7/^]|[ ][*x\u00d7/^][ ])          # 2 * 3
    | [A-Za-z](?:\*{{1,2}}|[\u00d7/^+]|[ ][*\u00d7/^+][ ])         # 2x + 3
    | [\w)}}][ ]?(?:\\(?:times|cdot|div|[bp]?mod)|÷)[ ]?
    | (?:\\[pm]m|±)[ ]?
    | (?:(?<![A-Za-z])[A-Za-z]|\\[A-Za-z]+)(?:{_SIGN}|[ ]{_SIGN}[ ])  # x - 3; a minus after a word is a sign
    ){_SIGN}?\Z""",
    re.VERBOSE,
)
_COMES_AFTER = re.compile(
    rf"""
      [ ]?(?:\^|\\(?:pi|sqrt|times|cdot|div|[bp]?mod|frac)|pi\b|[π√\u00d7÷½¼¾⅓⅔])
    | !(?=[ ]*[-+*/=\d(]|\$)                                     # a factorial; but "It is 5!" is joy
    | [ ](?:hundred|thousand|million|billion|trillion)s?\b         # 1/2 million
    | [a-fi-kn-rt-z](?![A-Za-z])                                 # 2i, 3x; but 5 m, g, s, h and l are units
    | [⁰¹²³⁴-⁹⁻]
    | \*{{1,2}}\d | [ ]\*[ ] | /[\d({{\\] | /[nxyz](?![A-Za-z])  # 60 km/h has a unit, and **42** is emphasis
    | [ ]?\+[ ]?[A-Za-z(\\]
    | (?:{_SIGN}|[ ]{_SIGN}[ ])(?:[b-zB-HJ-Z](?![A-Za-z])|\\[A-Za-z])   # 2 - x; but "42 - a lot" is prose
    | \( | \.\d | \}}[ ]?\{{
    """,
    re.VERBOSE,
)
_MIXED = re.compile(r"(?<![\w.])\d+ \Z")
"""Integer before a fraction: the value of `1 1/2` is neither 1 nor 1/2."""
_LOOK_BACK = 16
_LIST_BEFORE = re.compile(r"\d,\s*\Z")
_OPENS = re.compile(r"(?:\$|\\\(|\\boxed\{|[({\s])*")
_CLOSES = re.compile(
    r"(?:\\[,;])? ?(?:\\?%|°|\\text\{[^{}\d]*\}|\\mathrm\{[^{}\d]*\}|[A-Za-z][A-Za-z /²³]*)?(?:\$|\\\)|[)}.\s])*"
)
"""End of a text that is one number, perhaps with a unit."""


def last_number(text: str) -> float | None:
    """The last number in `text`; None without one, for one that is not finite, and for a part of an expression.

    >>> last_number("1,234,567"), last_number("1,2,3"), last_number("\u22125"), last_number("1e999999999")
    (1234567.0, 3.0, -5.0, None)
    >>> last_number("2^10"), last_number("3 x 10^5"), last_number("10^{-3}"), last_number("-2^2")
    (1024.0, 300000.0, 0.001, -4.0)
    >>> last_number("1/2x"), last_number("2 * 3"), last_number("x^2"), last_number("2 * 3 = **6**")
    (None, None, None, 6.0)
    """
    text = _rewritten(text)
    last = _last_match(text)
    return None if last is None else _value(text, last)


def only_number(text: str) -> float | None:
    """The number that is the whole of `text`, perhaps boxed, in dollar signs or with a unit; else None.

    >>> only_number("$1,000"), only_number("25 cm^2"), only_number("10 - 4"), only_number("about 5")
    (1000.0, 25.0, None, None)
    """
    text = _rewritten(text)
    last = _last_match(text)
    if last is None or not _OPENS.fullmatch(text, 0, last.start()):
        return None
    return _value(text, last) if _CLOSES.fullmatch(text, last.end()) else None


def ends_a_list(text: str) -> bool:
    """Whether the last number of `text` is the last of a list."""
    text = _rewritten(text)
    last = _last_match(text)
    return last is not None and _LIST_BEFORE.search(text, 0, last.start()) is not None


def _rewritten(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _value(text: str, found: re.Match[str]) -> float | None:
    sign, number, *exponents, bottom = found.groups()
    before = text[max(0, found.end(1) - _LOOK_BACK) : found.end(1)]
    if _COMES_BEFORE.search(before) or _COMES_AFTER.match(text, found.end()):
        return None
    if bottom is not None and _MIXED.search(before):
        return None
    power, ten_power = (
        _integer(next(filter(None, some), None)) for some in (exponents[:3], exponents[3:])
    )
    try:
        value = _plain(number)
        if bottom is not None:
            value /= _plain(bottom)
        elif power is not None:
            value **= power
        elif ten_power is not None:
            value *= 10.0**ten_power
    except (OverflowError, ZeroDivisionError):
        return None
    value = -value if sign.strip() in tuple(_MINUS) else value
    return value if math.isfinite(value) else None


def _last_match(text: str) -> re.Match[str] | None:
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one is meant
        pass
    return found


def _plain(number: str) -> float:
    """The value of a number with commas; infinite if it is too large."""
    return float(_with_hyphen(number.replace(",", "")))


def _integer(text: str | None) -> int | None:
    return None if text is None else int(_with_hyphen(text))


def _with_hyphen(number: str) -> str:
    return re.sub(f"[{_MINUS}]", "-", number)
