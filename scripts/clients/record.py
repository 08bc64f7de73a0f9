"""Records what real clients send, for `areal-sdk doctor model` to play on other people's models.

    python scripts/clients/record.py [--only smolagents litellm] [--write]

Each client does the task of run.py once more, with a policy that says what is hard to keep: calls at
the same time, quotes and characters outside ASCII in arguments, numbers that JSON knows two ways to
write. Kept is each request as the gateway read it, and its answer. Without `--write` nothing is.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients import CLIENTS
from policies import calls_at_once
from run import do_task, install, problem, version_of
from served import served

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sampling.reader import Prepared
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.session import Session

TRANSCRIPTS = Path(__file__).parents[2] / "areal_sdk" / "gateway" / "certificate" / "transcripts"
SHAPE = "qwen3"
NUM_CALLS = 4


@dataclass(frozen=True)
class Recording:
    """One client at one endpoint; its transcript is the file of that name."""

    name: str
    client: str
    endpoint: str
    streams: bool = False

    @property
    def title(self) -> str:
        """The client's own name, then what of it was recorded."""
        brands = ("openai-agents", "pydantic-ai", self.name.partition("-")[0])
        brand = next(brand for brand in brands if self.name.startswith(brand))
        return f"{brand} {self.name.removeprefix(brand).replace('-', ' ').strip()}".strip()


RECORDINGS = [
    Recording("openai-chat", "openai 3", "chat"),
    Recording("openai-chat-streamed", "openai 3", "chat", streams=True),
    Recording("openai-responses", "openai 3", "responses"),
    Recording("openai-responses-stored", "openai 3", "stored"),
    Recording("anthropic-messages", "anthropic", "messages"),
    Recording("anthropic-messages-streamed", "anthropic", "messages", streams=True),
    Recording("openai-agents-chat", "openai-agents", "chat"),
    Recording("openai-agents-responses", "openai-agents", "responses"),
    Recording("pydantic-ai-chat", "pydantic-ai", "chat"),
    Recording("pydantic-ai-responses", "pydantic-ai", "responses"),
    Recording("pydantic-ai-anthropic", "pydantic-ai", "messages"),
    Recording("langchain-chat", "langgraph", "chat"),
    Recording("langchain-responses", "langgraph", "responses"),
    Recording("langchain-anthropic", "langgraph", "messages"),
    Recording("litellm", "litellm", "chat"),
    Recording("smolagents", "smolagents", "chat"),
]


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [recording.name for recording in RECORDINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--write", action="store_true", help="into the package")
    options = parser.parse_args()
    failed = 0
    for recording in RECORDINGS:
        if recording.name not in options.only:
            continue
        transcript, error = await record(recording)
        found = error or f"{len(transcript['requests'])} requests"
        print(f"{recording.name}: {found}", flush=True)
        failed += bool(error)
        if options.write and not error:
            text = json.dumps(transcript, ensure_ascii=False, separators=(",", ":"))
            (TRANSCRIPTS / f"{recording.name}.json").write_text(text + "\n", encoding="utf-8")
    return int(failed > 0)


async def record(recording: Recording) -> tuple[dict[str, Any], str]:
    """The recorded conversation, and the problem if there was one."""
    client = next(client for client in CLIENTS if client.name == recording.client)
    python = install(client)
    async with served(calls_at_once, shape=SHAPE, tokens_per_chunk=3) as gateway:
        session = gateway.sessions.open(recording.name)
        requests = _noted(gateway)
        code, printed = await do_task(
            client,
            python,
            session,
            gateway,
            endpoint=recording.endpoint,
            streams=recording.streams,
            num_calls=NUM_CALLS,
        )
    error = printed[-2000:] if code else problem(session, printed)
    if not error and len(requests) != len(session.turns):
        error = f"{len(requests)} requests, {len(session.turns)} turns"
    return {
        "client": recording.title,
        "version": f"{client.shown} {await version_of(client, python)}",
        "requests": [
            {"messages": request.messages, "tools": request.tools, "answer": turn.message}
            for request, turn in zip(requests, session.turns, strict=False)
        ],
    }, error


def _noted(gateway: Gateway) -> Sequence[ChatRequest]:
    """The requests of the gateway from now on, as it read them from the wire."""
    requests: list[ChatRequest] = []
    prepare: Callable[..., Awaitable[Prepared]] = gateway._completer.prepare

    async def noting(session: Session, request: ChatRequest, **options: int) -> Prepared:
        requests.append(request)
        return await prepare(session, request, **options)

    gateway._completer.prepare = noting  # type: ignore[method-assign, assignment]
    return requests


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
