"""Child processes: start them, call them, learn of their death, and leave none behind."""

from areal_sdk.process.channel import Channel, ChannelClosedError, Request
from areal_sdk.process.child import Child
from areal_sdk.process.family import end_own_family, found_family
from areal_sdk.process.frames import JSON, Buffer, ChildReply, clean_text
from areal_sdk.process.spawn import spawn
from areal_sdk.process.spec import REPEATABLE_MATH, ChildExit, ProcessSpec, Reservation, gpus_of

__all__ = [
    "REPEATABLE_MATH",
    "JSON",
    "Buffer",
    "Channel",
    "ChannelClosedError",
    "Child",
    "ChildExit",
    "ChildReply",
    "Reservation",
    "ProcessSpec",
    "Request",
    "clean_text",
    "end_own_family",
    "found_family",
    "gpus_of",
    "spawn",
]
