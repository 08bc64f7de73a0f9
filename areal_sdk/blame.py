"""Which line of a stack is the user's: what errors and warnings should name."""

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

Line = tuple[FrameType, int]
"""A frame, and the number of the line in it."""

MAX_TRACE = 8000
"""Characters; of a longer one the end, which says what was raised."""

_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_CALL_USERS = (
    "areal_sdk.rollout.agents.adapters",
    "areal_sdk.rollout.agents.environment",
)
_LOOP = {
    ("asyncio.events", "_run"),
    ("asyncio.base_events", "_run_once"),
    ("asyncio.runners", "run"),
    ("areal_sdk.rollout.agents.worker", "main"),
}
"""Functions that a loop's callbacks are called from. Of uvloop only the last two have frames."""


def running_users_line(innermost: FrameType) -> Line | None:
    """The user's line that a thread with an event loop is in; None while it runs our code.

    Of an agent from an installed package it is the agent's own line, not the package's that it calls.
    """
    theirs: list[Line] = []
    for frame, line in traceback.walk_stack(innermost):
        module = _module(frame)
        if (module, frame.f_code.co_name) in _LOOP:
            return _users_own(theirs)
        if _is_ours(module):
            return (_users_own(theirs) or _outermost(theirs)) if module in _CALL_USERS else None
        theirs.append((frame, line))
    return _users_own(theirs)


def place_of(error: BaseException) -> str:
    """`file.py:line` of the user's innermost line that `error` came through; else empty."""
    found = _users_own(line for line in _lines(error) if not _is_ours(_module(line[0])))
    return "" if found is None else f"{Path(found[0].f_code.co_filename).name}:{found[1]}"


def trace_of(error: BaseException) -> str:
    """Its traceback from where it left our code, and no longer than anybody reads."""
    theirs = error.__traceback__
    while theirs is not None and _is_between(theirs.tb_frame):
        theirs = theirs.tb_next
    told = traceback.TracebackException(type(error), error, theirs or error.__traceback__)
    return "".join(told.format())[-MAX_TRACE:]


def _lines(error: BaseException) -> Iterator[Line]:
    """Innermost first."""
    return reversed(list(traceback.walk_tb(error.__traceback__)))


def _is_between(frame: FrameType) -> bool:
    """Whether it only leads to the user's code."""
    return _is_ours(_module(frame)) or _is_standard(frame)


def _users_own(lines: Iterable[Line]) -> Line | None:
    """The first that no package installed."""
    return next((line for line in lines if not _is_library(line[0])), None)


def _outermost(lines: list[Line]) -> Line | None:
    """The last of an installed package: nearest to us, who called it."""
    installed = (line for line in reversed(lines) if not _is_standard(line[0]))
    return next(installed, None)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(module: str) -> bool:
    return module == "areal_sdk" or module.startswith("areal_sdk.")


def _is_standard(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_STANDARD_LIBRARY) and not any(part in name for part in _INSTALLED)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return _is_standard(frame) or any(part in name for part in _INSTALLED)
