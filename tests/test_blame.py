"""The line that errors and warnings name is the user's, whatever it called."""

import json
import re
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from areal_sdk.errors.blame import place_of, running_users_line
from areal_sdk.rollout.tasks import stable_seed
from areal_sdk.types import Outcome


def error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - whose it is, is the question
        call()
    return raised.value


def line_below(function: Callable[..., object], lines: int = 1) -> int:
    return function.__code__.co_firstlineno + lines


def test_an_error_is_placed_where_the_user_called_what_raised() -> None:
    def in_a_library() -> None:
        json.loads("{")

    def in_ours() -> None:
        Outcome.scored(float("nan"))

    for function in (in_a_library, in_ours):
        assert place_of(error_of(function)) == f"test_blame.py:{line_below(function)}"


def test_an_error_that_no_user_saw_has_no_place() -> None:
    assert place_of(ValueError("never raised")) == ""


def seen_in(function: Callable[[Callable[[], None]], object]) -> list[FrameType | None]:
    found: list[FrameType | None] = []

    def look() -> None:
        line = running_users_line(sys._getframe(1))
        found.append(line[0] if line is not None else None)

    function(look)
    return found


def test_the_line_that_runs_is_the_users_though_a_library_called_back() -> None:
    def runs(look: Callable[[], None]) -> None:
        def called_back(_: re.Match[str]) -> str:
            look()
            return ""

        re.sub("a", called_back, "a")

    (frame,) = seen_in(runs)
    assert frame is not None
    assert frame.f_code.co_filename == __file__


def test_while_our_code_runs_no_line_of_the_users_does() -> None:
    found: list[object] = []

    def trace(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is stable_seed.__code__:
            found.append(running_users_line(frame))

    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        stable_seed(1, "a")
    finally:
        sys.setprofile(before)
    assert found
    assert set(found) == {None}
