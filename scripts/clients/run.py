"""Real clients do a multi-turn tool task against a real gateway: how many samples is an episode?

    python scripts/clients/run.py [--only openai-agents smolagents] [--write]

Each client is installed from PyPI or npm into an environment of its own, kept in the cache, and
does the same task (tasks/task.py) with every endpoint it speaks, whole and streamed, against templates
of Qwen 2.5's and Qwen 3's shape. Command-line agents (agents.py) do theirs, in a network of their own
that reaches the gateway alone. The engine is scripted. An episode is one sample when nothing that the
client rewrote started a branch; a branch needs a reason. `--write` puts the table into docs/gateway.md.
"""

import argparse
import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agents import AGENTS, CliAgent, play, prepare
from agents import script as agent_script
from environments import environment, node, npm_environment, npm_version
from served import run, served, write_table

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.history import num_equal
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.types import Message

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gateway.md"
TIMEOUT_S = 180
SHAPES = ("qwen2.5", "qwen3")
NUM_TURNS = 5
NUM_CALLS = 3
AGENT_CONTEXT = 200_000
"""Agents tell of tens of thousands of characters of tools."""


@dataclass(frozen=True)
class Client:
    name: str
    task: str
    endpoints: Sequence[str]
    requirements: Sequence[str]
    shown: str
    """The package whose version the table names; for npm, perhaps several."""
    is_npm: bool = False
    provider: str = ""
    """Of Vercel's SDK: what the model is made with."""


CHAT_AND_RESPONSES = ("chat", "responses")
ALL = ("chat", "responses", "messages")

AI_SDK = [
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/openai-compatible@3.0.92",
    "@ai-sdk/anthropic@4.0.105",
    "zod@4.6.7",
]

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
    Client(
        "npm openai", "openai_sdk", CHAT_AND_RESPONSES, ["openai@7.57.0"], "openai", is_npm=True
    ),
    Client(
        "npm anthropic",
        "anthropic_sdk",
        ["messages"],
        ["@anthropic-ai/sdk@1.12.0"],
        "@anthropic-ai/sdk",
        is_npm=True,
    ),
    *(
        Client(
            f"npm ai {provider}",
            "ai_sdk",
            endpoints,
            AI_SDK,
            f"ai + @ai-sdk/{provider}",
            is_npm=True,
            provider=provider,
        )
        for provider, endpoints in (
            ("openai-compatible", ["chat"]),
            ("openai", CHAT_AND_RESPONSES),
            ("anthropic", ["messages"]),
        )
    ),
    Client(
        "npm langchain",
        "langchain_js",
        ALL,
        [
            "langchain@1.5.14",
            "@langchain/core@1.4.0",
            "@langchain/openai@1.6.0",
            "@langchain/anthropic@1.5.11",
        ],
        "langchain",
        is_npm=True,
    ),
]


@dataclass(frozen=True)
class Episode:
    """What one run of the task left in its session."""

    client: str
    """Its name and version."""
    endpoint: str
    streams: bool
    num_samples: int
    reasons: tuple[str, ...]
    """Why each further sample began, and what of the request made it so."""
    error: str = ""


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [client.name for client in (*CLIENTS, *AGENTS)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CLIENT")
    parser.add_argument("--write", action="store_true", help="the table into docs/gateway.md")
    options = parser.parse_args()
    episodes: list[Episode] = []
    for client in (*CLIENTS, *AGENTS):
        if client.name in options.only:
            tried = try_agent(client) if isinstance(client, CliAgent) else try_out(client)
            found = [episode async for episode in tried]
            print("\n".join(table(found)[2:]), flush=True)
            episodes += found
    errors = [e for e in episodes if e.error]
    for e in errors:
        print(f"FAILED {e.client} {e.endpoint} streams={e.streams}: {e.error}")
    if options.write:
        kept = [] if options.only == names else rows_of_others(PAGE, table(episodes))
        head, rule, *rows = table(episodes)
        write_table(PAGE, "clients", [head, rule, *kept, *rows])
    return int(bool(errors))


async def try_out(client: Client) -> AsyncIterator[Episode]:
    installed = install(client)
    title = await title_of(client, installed)
    for shape in SHAPES:
        async with served(script(shape), shape=shape, tokens_per_chunk=3) as gateway:
            for endpoint in client.endpoints:
                for streams in (False, True):
                    session = gateway.sessions.open(f"{endpoint}-{streams}")
                    code, printed = await do_task(
                        client, installed, session, gateway, endpoint=endpoint, streams=streams
                    )
                    error = printed[-2000:] if code else problem(session)
                    num_samples, reasons = branches(session)
                    yield Episode(title, endpoint, streams, num_samples, reasons, error)


async def try_agent(agent: CliAgent) -> AsyncIterator[Episode]:
    """Agents stream, and write tools into their own prompts: one template is enough."""
    title = f"npm {agent.name} {agent.version}"
    with TemporaryDirectory(prefix="areal-sdk-agent-") as directory:
        work = Path(directory)
        prepare(work)
        policy = agent_script(agent, work)
        async with served(policy, tokens_per_chunk=3, max_context=AGENT_CONTEXT) as gateway:
            session = gateway.sessions.open("agent")
            code, printed = await play(agent, gateway, session, work)
            error = printed[-2000:] if code else problem(session)
            num_samples, reasons = branches(session)
            yield Episode(title, agent.endpoint, True, num_samples, reasons, error)


def install(client: Client) -> Path:
    """The Python that has the client, or the folder that holds its node_modules."""
    name = f"client-{client.name.replace(' ', '-')}"
    if not client.is_npm:
        return environment(name, *client.requirements)
    root = npm_environment(name, *client.requirements)
    for module in ("task", client.task):  # modules are looked for beside the program
        shutil.copy(HERE / "tasks" / f"{module}.mjs", root)
    return root


async def title_of(client: Client, installed: Path) -> str:
    if client.is_npm:
        names = client.shown.split(" + ")
        return "npm " + " + ".join(f"{name} {npm_version(installed, name)}" for name in names)
    return f"{client.shown} {await version_of(client, installed)}"


async def version_of(client: Client, python: Path) -> str:
    program = f"from importlib.metadata import version; print(version('{client.shown}'))"
    _, printed = await run(python, "-c", program, timeout_s=60)
    return printed.strip()


async def do_task(
    client: Client,
    installed: Path,
    session: Session,
    gateway: Gateway,
    *,
    endpoint: str,
    streams: bool,
    num_calls: int = NUM_CALLS,
) -> tuple[int, str]:
    """The exit code and what the client printed."""
    program = (
        [node(), installed / f"{client.task}.mjs"]
        if client.is_npm
        else [installed, HERE / "tasks" / f"{client.task}.py"]
    )
    return await run(
        *(*program, endpoint),
        "stream" if streams else "whole",
        timeout_s=TIMEOUT_S,
        BASE_URL=session.base_url(gateway.base_url),
        API_KEY=session.key,
        NUM_CALLS=str(num_calls),
        PROVIDER=client.provider,
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
    forks = [index for index, turn in enumerate(session.turns) if turn.fork is not None]
    return num_leaves, tuple(f"{session.turns[i].fork}: {changed(session, i)}" for i in forks)


def changed(session: Session, index: int) -> str:
    """Where a turn's request first differs from the turn before that it has most in common with."""
    asked = _conversation(session, index)
    known = max(
        (num_equal(asked, _conversation(session, before)) for before in range(index)), default=0
    )
    if not known:
        return "a conversation of its own"
    return f"message {known}, {asked[known]['role']}"


def _conversation(session: Session, index: int) -> list[Message]:
    turn = session.turns[index]
    past = [] if turn.parent is None else _conversation(session, turn.parent)
    return [*past, *turn.new_messages, turn.message]


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


def rows_of_others(page: Path, new: Sequence[str]) -> list[str]:
    """The page's rows of the clients that were not tried this time."""
    shown = page.read_text().partition("<!-- clients -->\n")[2].partition("<!-- end")[0]
    tried = {_client_in(row) for row in new}
    return [row for row in shown.splitlines()[2:] if _client_in(row) not in tried]


def _client_in(row: str) -> str:
    """The client of a row and its major version."""
    return re.sub(r"(\d+)(\.\d+)+", r"\1", row.split(" | ")[0])


def table(episodes: Sequence[Episode]) -> list[str]:
    """Samples an episode, by client and endpoint, worst of the templates."""
    lines = ["| client | endpoint | whole | streamed | branches |", "|---|---|---|---|---|"]
    rows: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        rows.setdefault((episode.client, episode.endpoint), []).append(episode)
    for (name, endpoint), found in rows.items():
        cells = []
        for streams in (False, True):
            asked = [e for e in found if e.streams is streams]
            if not asked:
                cells.append("")
                continue
            number = sum(e.num_samples for e in asked) / len(asked)
            cells.append("failed" if any(e.error for e in asked) else f"{number:.1f}")
        reasons = sorted({reason for e in found for reason in e.reasons})
        lines.append(f"| {name} | {endpoint} | {' | '.join(cells)} | {', '.join(reasons)} |")
    return lines


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
