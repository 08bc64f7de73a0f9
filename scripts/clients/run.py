"""Real clients do a multi-turn tool task against a real gateway: how many samples is an episode?

    python scripts/clients/run.py [--only openai-agents smolagents] [--write]

Each client is installed from the package index into an environment of its own, kept in the cache, and
does the same task (tasks/task.py) with every endpoint it speaks, whole and streamed, against templates
of Qwen 2.5's and Qwen 3's shape. The engine is scripted. An episode is one sample when nothing that the
client rewrote started a branch; a branch needs a reason. `--write` puts the table into docs/gateway.md.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from environments import environment
from served import run, served, write_table

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.session import Session

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gateway.md"
TIMEOUT_S = 180
SHAPES = ("qwen2.5", "qwen3")
NUM_TURNS = 5
NUM_CALLS = 3


@dataclass(frozen=True)
class Client:
    name: str
    task: str
    endpoints: Sequence[str]
    requirements: Sequence[str]
    shown: str
    """The package whose version the table names."""
    num_turns: int = NUM_TURNS


CHAT_AND_RESPONSES = ("chat", "responses")
ALL = ("chat", "responses", "messages")

CLIENTS = [
    Client("openai 1", "openai_chat", CHAT_AND_RESPONSES, ["openai>=1.66,<2"], "openai"),
    Client("openai 2", "openai_chat", CHAT_AND_RESPONSES, ["openai>=2,<3"], "openai"),
    Client("openai 3", "openai_chat", CHAT_AND_RESPONSES, ["openai>=3,<4"], "openai"),
    Client("anthropic", "anthropic_messages", ["messages"], ["anthropic"], "anthropic"),
    Client(
        "openai-agents", "openai_agents", CHAT_AND_RESPONSES, ["openai-agents"], "openai-agents"
    ),
    Client(
        "pydantic-ai",
        "pydantic_ai_agent",
        ALL,
        ["pydantic-ai-slim[openai,anthropic]"],
        "pydantic-ai-slim",
    ),
    Client(
        "langgraph",
        "langgraph_agent",
        ALL,
        ["langchain", "langchain-openai", "langchain-anthropic"],
        "langgraph",
    ),
    Client("litellm", "litellm_chat", ["chat"], ["litellm", "mcp"], "litellm"),
    Client("smolagents", "smolagents_agent", ["chat"], ["smolagents[openai]"], "smolagents"),
]


@dataclass(frozen=True)
class Episode:
    """What one run of the task left in its session."""

    client: Client
    version: str
    endpoint: str
    streams: bool
    num_samples: int
    reasons: tuple[str, ...]
    error: str = ""


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [client.name for client in CLIENTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CLIENT")
    parser.add_argument("--write", action="store_true", help="the table into docs/gateway.md")
    options = parser.parse_args()
    episodes: list[Episode] = []
    for client in CLIENTS:
        if client.name in options.only:
            found = [episode async for episode in try_out(client)]
            print("\n".join(table(found)[2:]), flush=True)
            episodes += found
    errors = [e for e in episodes if e.error]
    for e in errors:
        print(f"FAILED {e.client.name} {e.endpoint} streams={e.streams}: {e.error}")
    if options.write:
        write_table(PAGE, "clients", table(episodes))
    return int(bool(errors))


async def try_out(client: Client) -> AsyncIterator[Episode]:
    python = environment(f"client-{client.name.replace(' ', '-')}", *client.requirements)
    version = await version_of(client, python)
    for shape in SHAPES:
        async with served(script(shape), shape=shape, tokens_per_chunk=3) as gateway:
            for endpoint in client.endpoints:
                for streams in (False, True):
                    session = gateway.sessions.open(f"{endpoint}-{streams}")
                    code, printed = await do_task(
                        client, python, session, gateway, endpoint=endpoint, streams=streams
                    )
                    error = printed[-2000:] if code else problem(session)
                    num_samples, reasons = branches(session)
                    yield Episode(client, version, endpoint, streams, num_samples, reasons, error)


async def version_of(client: Client, python: Path) -> str:
    program = f"from importlib.metadata import version; print(version('{client.shown}'))"
    _, printed = await run(python, "-c", program, timeout_s=60)
    return printed.strip()


async def do_task(
    client: Client,
    python: Path,
    session: Session,
    gateway: Gateway,
    *,
    endpoint: str,
    streams: bool,
    num_calls: int = NUM_CALLS,
) -> tuple[int, str]:
    """The exit code and what the client printed."""
    return await run(
        *(python, HERE / "tasks" / f"{client.task}.py", endpoint),
        "stream" if streams else "whole",
        timeout_s=TIMEOUT_S,
        BASE_URL=session.base_url(gateway.base_url),
        API_KEY=session.key,
        NUM_CALLS=str(num_calls),
    )


def problem(session: Session) -> str:
    """What must not have happened, although the client was content."""
    if len(session.turns) < NUM_TURNS:
        return f"only {len(session.turns)} turns"
    return "; ".join(session.faults)


def branches(session: Session) -> tuple[int, tuple[str, ...]]:
    """Sequences to train, and why each one after the first began."""
    continued = {turn.parent for turn in session.turns}
    num_leaves = sum(index not in continued for index in range(len(session.turns)))
    return num_leaves, tuple(str(turn.fork) for turn in session.turns if turn.fork is not None)


def script(shape: str) -> Callable[[str], str]:
    """What the policy says: calls until it has two results, one more to the second question."""

    def answer(prompt: str) -> str:
        num_results = len(set(re.findall(r"RESULT-\d", prompt)))
        demanded = prompt.endswith("<tool_call>\n")  # the call is begun already
        thinks = shape == "qwen3" and not demanded
        thought = f"<think>\nhm {num_results}\n</think>\n\n" if thinks else ""
        wanted = 3 if "And 9?" in prompt else 2
        text = f"The answer is {num_results}."
        if num_results < wanted:
            said = "Let me see.\n" if num_results < 2 and not demanded else ""
            call = {"name": "calculator", "arguments": {"expression": f"{num_results} + 1.0"}}
        elif demanded:  # smolagents ends with a call
            said, call = "", {"name": "final_answer", "arguments": {"answer": text}}
        else:
            return thought + text
        begun = "" if demanded else "<tool_call>\n"
        return f"{thought}{said}{begun}{json.dumps(call)}\n</tool_call>"

    return answer


def table(episodes: Sequence[Episode]) -> list[str]:
    """Samples an episode, by client and endpoint, worst of the templates."""
    lines = ["| client | endpoint | whole | streamed | branches |", "|---|---|---|---|---|"]
    rows: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        name = f"{episode.client.shown} {episode.version}"
        rows.setdefault((name, episode.endpoint), []).append(episode)
    for (name, endpoint), found in rows.items():
        cells = []
        for streams in (False, True):
            asked = [e for e in found if e.streams is streams]
            number = sum(e.num_samples for e in asked) / len(asked)
            cells.append("failed" if any(e.error for e in asked) else f"{number:.1f}")
        reasons = sorted({reason for e in found for reason in e.reasons})
        lines.append(f"| {name} | {endpoint} | {' | '.join(cells)} | {', '.join(reasons)} |")
    return lines


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
