"""Services: the methods of one process that another process calls, typed at both ends."""

from areal_sdk.process.services.answering import Answering, answer_until_closed
from areal_sdk.process.services.client import Client
from areal_sdk.process.services.contract import Answer, Bulk, Number, Service, Stream, at_once

__all__ = [
    "Answer",
    "Answering",
    "Bulk",
    "Client",
    "Number",
    "Service",
    "Stream",
    "answer_until_closed",
    "at_once",
]
