"""Reads the last number of a text, as people and models write numbers.

A number inside an expression is not the value of the expression, so it counts as no number at all.
"""

import math
import re

_MINUS = "\u2212"
_UNSIGNED = (
    r"(?:(?:(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
"""With a comma at each thousand or at none: 1,234,567 is one number, 1,2,3 and 12,34 are lists."""
_SIGN, _CURRENCY = f"[-+{_MINUS}]", r"\\?[$€£¥]"
_INTEGER = rf"{_SIGN}?\d{{1,6}}(?!\d)"
_EXPONENT = rf" ?\^ ?(?:\{{ ?({_INTEGER}) ?\}}|({_INTEGER}))"
"""As in 2^10 and 10^{-3}."""
_TIMES = r"(?:[x\u00d7*]|\\times|\\cdot)"
_NUMBER = re.compile(
    rf"(?<![\w.])({_SIGN}?)(?:{_CURRENCY})?({_UNSIGNED})"
    rf"(?:{_EXPONENT}| ?{_TIMES} ?10{_EXPONENT}| ?/ ?({_SIGN}?{_UNSIGNED}))?"
)
_FRACTION = re.compile(
    rf"((?<![\d)}}]){_SIGN}|)\\[dt]?frac ?\{{ ?({_UNSIGNED}) ?\}} ?\{{ ?({_UNSIGNED}) ?\}}"
)
_COMES_BEFORE = re.compile(
    r"(?:[\^_] ?\{? ?"  # an exponent or an index
    r"|(?:sqrt|√) ?[{(]? ?"
    r"|[\d)}](?:\*{1,2}|[x\u00d7/+^]| (?:[*x\u00d7/+^]) | ?\\(?:times|cdot) ?))\Z"
)
_COMES_AFTER = re.compile(
    r" ?(?:\^|\\(?:pi|sqrt|times|cdot)|[π√\u00d7])|[xyz](?![A-Za-z])|[⁰¹²³⁴-⁹⁻]|\*{1,2}\d| \* |/[\d({\\]|/[xyz](?![A-Za-z])"
)
"""Of an expression. `**42**` is emphasis, and `60 km/h` has a unit."""
_MIXED = re.compile(r"(?<![\w.])\d+ \Z")
"""Before a fraction: 1 1/2 is neither of the two."""
_LOOK_BACK = 16
_LIST_BEFORE = re.compile(r"\d,\s*\Z")


def last_number(text: str) -> float | None:
    """The last number in `text`; None without one, for one that is not finite, and for a part of an expression.

    >>> last_number("1,234,567"), last_number("1,2,3"), last_number("\u22125"), last_number("1e999999999")
    (1234567.0, 3.0, -5.0, None)
    >>> last_number("2^10"), last_number("3 x 10^5"), last_number("10^{-3}"), last_number("-2^2")
    (1024.0, 300000.0, 0.001, -4.0)
    >>> last_number("1/2x"), last_number("2 * 3"), last_number("x^2"), last_number("2 * 3 = **6**")
    (None, None, None, 6.0)
    """
    text = _FRACTION.sub(r" \1\2/\3", text)
    last = _last_match(text)
    if last is None:
        return None
    before = text[max(0, last.start() - _LOOK_BACK) : last.start()]
    if _COMES_BEFORE.search(before) or _COMES_AFTER.match(text, last.end()):
        return None
    sign, number, *exponents, bottom = last.groups()
    if bottom is not None and _MIXED.search(before):
        return None
    power, ten_power = (_integer(a or b) for a, b in (exponents[:2], exponents[2:]))
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
    value = -value if sign in ("-", _MINUS) else value
    return value if math.isfinite(value) else None


def ends_a_list(text: str) -> bool:
    """Whether the last number of `text` is the last of a list."""
    last = _last_match(text)
    return last is not None and _LIST_BEFORE.search(text, 0, last.start()) is not None


def _last_match(text: str) -> re.Match[str] | None:
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one is meant
        pass
    return found


def _plain(number: str) -> float:
    """Too large a number is infinite."""
    return float(number.replace(",", "").replace(_MINUS, "-"))


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text.replace(_MINUS, "-"))
