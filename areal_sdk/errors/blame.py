"""Finds the user's line in a stack, the line that errors and warnings should name."""

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

Line = tuple[FrameType, int]
"""A frame, and the number of the line in it."""

MAX_TRACE = 8000
"""Maximum length of a stored traceback in characters. A longer one keeps its end, where the exception is."""

_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/")
CALLS_USER_CODE = "_CALLS_USER_CODE"
"""Global that a module of the SDK sets to True if its functions call user code directly."""

RUNS_EVENT_LOOP = "_RUNS_EVENT_LOOP"
"""Global that a module of the SDK sets to the name of its function that runs an event loop."""

_LOOP = {
    ("asyncio.events", "_run"),
    ("asyncio.base_events", "_run_once"),
    ("asyncio.runners", "run"),
}
"""(module, function) of asyncio that call a loop's callbacks. Under uvloop only the last one is in the stack."""


def running_users_line(innermost: FrameType) -> Line | None:
    """The user's line that a thread with an event loop executes; None while it executes SDK code.

    For an agent from an installed package it is the line of the agent, not of a package it calls.
    """
    theirs: list[Line] = []
    for frame, line in traceback.walk_stack(innermost):
        module = _module(frame)
        if _runs_loop(frame, module):
            return _users_own(theirs)
        if _is_ours(module):
            if not frame.f_globals.get(CALLS_USER_CODE):
                return None
            return _users_own(theirs) or _outermost(theirs)
        theirs.append((frame, line))
    return _users_own(theirs)


def place_of(error: BaseException) -> str:
    """`file.py:line` of the user's innermost line that `error` came through; else empty."""
    found = _users_own(line for line in _lines(error) if not _is_ours(_module(line[0])))
    return "" if found is None else f"{Path(found[0].f_code.co_filename).name}:{found[1]}"


def trace_of(error: BaseException) -> str:
    """The traceback of `error` from the user's first frame on, at most `MAX_TRACE` characters."""
    theirs = error.__traceback__
    while theirs is not None and _is_between(theirs.tb_frame):
        theirs = theirs.tb_next
    told = traceback.TracebackException(type(error), error, theirs or error.__traceback__)
    return "".join(told.format())[-MAX_TRACE:]


def _lines(error: BaseException) -> Iterator[Line]:
    """The frames that `error` came through, each with its line, innermost first."""
    return reversed(list(traceback.walk_tb(error.__traceback__)))


def _is_between(frame: FrameType) -> bool:
    """Whether the frame is of the SDK or the standard library, and so not the user's."""
    return _is_ours(_module(frame)) or _is_standard(frame)


def _users_own(lines: Iterable[Line]) -> Line | None:
    """The first line that is not in an installed package or the standard library."""
    return next((line for line in lines if not _is_library(line[0])), None)


def _outermost(lines: list[Line]) -> Line | None:
    """The outermost line of an installed package: the one that the SDK called."""
    installed = (line for line in reversed(lines) if not _is_standard(line[0]))
    return next(installed, None)


def _runs_loop(frame: FrameType, module: str) -> bool:
    name = frame.f_code.co_name
    return (module, name) in _LOOP or frame.f_globals.get(RUNS_EVENT_LOOP) == name


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
