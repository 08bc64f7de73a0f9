"""What real clients sent, request by request, as the gateway read it from their wire formats."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from areal_sdk.types import Message, Tool

_RECORDED = Path(__file__).with_name("transcripts")


@dataclass(frozen=True, slots=True)
class Request:
    """One request and the answer it got."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answer: Message


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation of one client."""

    client: str
    requests: tuple[Request, ...]


def recorded() -> Iterator[Transcript]:
    """The transcripts that come with this package, in order of the clients' names."""
    for path in sorted(_RECORDED.glob("*.json")):
        yield read_transcript(path)


def read_transcript(path: Path) -> Transcript:
    document = orjson.loads(path.read_bytes())
    requests = (
        Request(tuple(item["messages"]), tuple(item["tools"]), item["answer"])
        for item in document["requests"]
    )
    return Transcript(document["client"], tuple(requests))
