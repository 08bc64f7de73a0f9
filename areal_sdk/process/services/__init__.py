"""Services: the methods of one process that another process calls, typed at both ends."""

from areal_sdk.process.services.answering import Answering, LoopAnswering, answer_until_closed
from areal_sdk.process.services.client import Client, MainClient, StreamClient
from areal_sdk.process.services.contract import (
    BEAT_S,
    REPORT_AFTER_S,
    Answer,
    Bulk,
    Service,
    Stream,
    at_once,
)

__all__ = [
    "BEAT_S",
    "REPORT_AFTER_S",
    "Answer",
    "Answering",
    "Bulk",
    "Client",
    "LoopAnswering",
    "MainClient",
    "Service",
    "Stream",
    "StreamClient",
    "answer_until_closed",
    "at_once",
]
