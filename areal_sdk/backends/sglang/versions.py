"""Which versions of SGLang can be trained against."""

import re

OLDEST = "0.5.22"
"""Older servers can crash when new weights meet running requests (their cache flush asserts that
there are none); before 0.5.21 an update has no begin and end, before 0.5.19 tokens no version."""


def why_not(version: str) -> str:
    """Why a version cannot be used; empty when it can.

    >>> why_not("0.5.23.post1")
    ''
    >>> why_not("0.5.9")
    '0.5.22 or newer is needed: older ones can crash when new weights meet running requests'
    """
    if _numbers(version) >= _numbers(OLDEST):
        return ""
    return (
        f"{OLDEST} or newer is needed: older ones can crash when new weights meet running requests"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
