"""Real clients do a multi-turn tool task against a real gateway: how many samples is an episode?

    python scripts/clients/run.py [--only openai-agents smolagents] [--write]

Each client is installed from PyPI or npm into an environment of its own, kept in the cache, and
does the same task (tasks/task.py) with every endpoint it speaks, whole and streamed, against templates
of Qwen 2.5's and Qwen 3's shape. Command-line agents (agents.py) do theirs, in a network of their own
that reaches the gateway alone. The engine is scripted. An episode is one sample when nothing that the
client rewrote started a branch; a client that is not said to rewrite (clients.py) fails by branching.
`--write` puts the table into docs/gateway.md.
"""

import argparse
import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agents import AGENTS, CliAgent, play, prepare
from agents import script as agent_script
from clients import CLIENTS, Client
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
AGENT_CONTEXT = 200_000
"""Agents tell of tens of thousands of characters of tools."""

LEFT = "A CONNECTION LEFT THIS MACHINE"
"""Text that tasks/on_loopback.py prints of a connection that it refused."""

QUIET = {
    "AGNO_TELEMETRY": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "false",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Telemetry off, in the words of each framework; tasks/on_loopback.py tells of what is not."""


@dataclass(frozen=True)
class Episode:
    """The record of one run of the task in its session."""

    client: str
    """Name and version of the client."""
    endpoint: str
    streams: bool
    num_samples: int
    reasons: tuple[str, ...]
    """Reason why each further sample began, with the part of the request that made it so."""
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
            for said in client.changes if isinstance(client, Client) else ():
                if all(e.num_samples == 1 for e in found if how(e.streams) == said):
                    print(f"NOTE {client.name} {said}: rewrites nothing that starts a branch")
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
        policy, num_calls = client.policy(shape)
        async with served(policy, shape=shape, tokens_per_chunk=3) as gateway:
            for endpoint in client.endpoints:
                for streams in (False, True):
                    session = gateway.sessions.open(f"{endpoint}-{streams}")
                    code, printed = await do_task(
                        *(client, installed, session, gateway),
                        endpoint=endpoint,
                        streams=streams,
                        num_calls=num_calls,
                    )
                    num_samples, reasons = branches(session)
                    error = printed[-2000:] if code else problem(session, printed)
                    known = client.changes.get(how(streams))
                    if known is None and num_samples > 1 and not error:
                        error = f"{num_samples} samples of a faithful client: {', '.join(reasons)}"
                    elif known is not None:
                        reasons = tuple(f"{why.partition(':')[0]}: {known}" for why in reasons)
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
    if not client.is_npm:
        return environment(client.environment, *client.requirements)
    root = npm_environment(client.environment, *client.requirements)
    for module in ("task", client.task):  # modules are looked for beside the program
        shutil.copy(HERE / "tasks" / f"{module}.mjs", root)
    return root


async def title_of(client: Client, installed: Path) -> str:
    if client.is_npm:
        names = client.shown.split(" + ")
        return "npm " + " + ".join(f"{name} {npm_version(installed, name)}" for name in names)
    title = f"{client.shown} {await version_of(client, installed)}"
    return f"{title}, {client.kind}" if client.kind else title


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
    num_calls: int,
) -> tuple[int, str]:
    """The exit code and what the client printed."""
    program = (
        [node(), installed / f"{client.task}.mjs"]
        if client.is_npm
        else [installed, HERE / "tasks" / "on_loopback.py", HERE / "tasks" / f"{client.task}.py"]
    )
    return await run(
        *(*program, endpoint),
        how(streams),
        timeout_s=TIMEOUT_S,
        BASE_URL=session.base_url(gateway.base_url),
        API_KEY=session.key,
        NUM_CALLS=str(num_calls),
        PROVIDER=client.provider,
        **QUIET,
    )


def how(streams: bool) -> str:
    return "streamed" if streams else "whole"


def problem(session: Session, printed: str = "") -> str:
    """The fault that must not have happened, although the client was content; empty if there is
    none."""
    if LEFT in printed:
        return printed[printed.index(LEFT) :][:200]
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
    """The place where a turn's request first differs from the turn before that it has most in
    common with."""
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
