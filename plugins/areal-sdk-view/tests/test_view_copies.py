"""An episode in the forms of others, read again by those who read these forms."""

import asyncio
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
from view_runs import ATTACK

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.records import FollowedRun
from areal_sdk.testing import RecordedRun
from areal_sdk.types import Exclusion
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.readers import reader_of
from areal_sdk_traces.rows import read_rows


async def copied(client: aiohttp.ClientSession, status: int = 200, **query: str) -> Any:
    async with client.get("/api/runs/guess-1/copy", params=query) as response:
        assert response.status == status, await response.text()
        return (await response.json()).get("text")


def read_again(text: str, format: str, directory: Path) -> list[Any]:
    """The conversations that areal-sdk-traces finds, none of them damaged."""
    file = directory / "copied.jsonl"
    file.write_text(text)
    book = Book()
    rows = read_rows(str(file), book, stdin=io.BytesIO())
    found = [*reader_of(format)(rows, book)]
    assert not book.of(Fate.DAMAGED), book.entries
    return found


def said(messages: Any) -> list[tuple[str, str, list[str]]]:
    return [
        (
            message["role"],
            message.get("content") or "",
            [call["function"]["name"] for call in message.get("tool_calls") or ()],
        )
        for message in messages
    ]


def sent_by(command: str, directory: Path) -> Any:
    """The body that a command for a real shell sends: `curl` is a program here that keeps it."""
    directory.mkdir()
    program, out = directory / "curl", directory / "body"
    program.write_text('#!/bin/sh\ncat > "$OUT"\n')
    program.chmod(0o700)
    environment = {"PATH": f"{directory}:/usr/bin:/bin", "OUT": str(out)}
    subprocess.run(["sh", "-c", command], check=True, cwd=directory, env=environment, timeout=30)
    assert {file.name for file in directory.iterdir()} == {"body", "curl"}, (
        "a text became a command"
    )
    return json.loads(out.read_text())


async def test_an_episode_as_atif_is_read_again_as_it_was(
    client: aiohttp.ClientSession, runs: Path, tmp_path: Path
) -> None:
    text = await copied(client, id="train-2.0", **{"as": "atif"})
    (one,) = read_again(text, "atif", tmp_path)
    run = FollowedRun(runs / "guess-1")
    run.refresh()
    summary = run.find("train-2.0")
    assert summary is not None
    episode = run.record(summary).episode
    assert said(one.messages) == said(episode.messages)
    assert (one.score, one.model) == (0.0, "tiny")
    document = json.loads(text)
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3]
    metrics = [step["metrics"] for step in document["steps"] if step["source"] == "agent"]
    assert [one["completion_token_ids"] for one in metrics] == [
        list(turn.output_tokens) for turn in episode.turns
    ]
    assert metrics[1]["prompt_token_ids"] == list(episode.turns[1].prompt_tokens)
    assert metrics[1]["logprobs"] == list(episode.turns[1].logprobs)


async def test_a_branch_is_a_line_of_its_own(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    text = await copied(client, id="train-2.3", **{"as": "jsonl"})
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["messages"][-1]["content"] for row in rows][1] == ATTACK
    assert rows[0]["reward"] == 0.4
    text = await copied(client, id="train-2.3", **{"as": "atif"})
    assert len(text.splitlines()) == len(read_again(text, "atif", tmp_path)) == 2


async def test_a_line_of_jsonl_has_the_conversation_and_the_verdict(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    text = await copied(client, id="train-2.0", **{"as": "jsonl"})
    (row,) = [json.loads(line) for line in text.splitlines()]
    assert [message["role"] for message in row["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (row["reward"], row["success"], row["task"], row["split"]) == (
        0.0,
        False,
        "t-2",
        "train",
    )
    assert len(read_again(text, "openai", tmp_path)) == 1


async def test_a_turn_as_curl_asks_what_the_turn_asked(
    client: aiohttp.ClientSession, runs: Path, tmp_path: Path
) -> None:
    asked = {
        "role": "user",
        "content": f"END\nEND\n'; touch pwned; $(touch pwned) `touch pwned` {ATTACK}",
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    first = Turn(
        (1,),
        (2,),
        (-0.5,),
        (0,),
        {"role": "assistant", "content": "hm"},
        (asked,),
        temperature=0.7,
        details={"tools": [tool]},
    )
    second = Turn(
        (3,),
        (4,),
        (-0.5,),
        (0,),
        {"role": "assistant", "content": "yes"},
        ({"role": "user", "content": "so?"},),
        parent=0,
        excluded=Exclusion.GREEDY,
        num_shared=2,
        shares_with=0,
        _before=first,
    )
    run = RecordedRun(runs / "guess-1")
    run.drop(Episode("x", Task("t"), (first, second), Outcome.scored(1.0)), "stale")
    run.close()
    text = await copied(client, id="x", turn="1", **{"as": "curl"})
    body = await asyncio.to_thread(sent_by, text, tmp_path / "shell")
    assert body["messages"] == [asked, first.message, {"role": "user", "content": "so?"}]
    assert (body["temperature"], body["model"], body["tools"]) == (0.0, "tiny", [tool])
    assert text.isascii()
    text = await copied(client, id="x", turn="0", **{"as": "curl"})
    assert json.loads(text.splitlines()[1])["temperature"] == 0.7
    await copied(client, 404, id="x", turn="2", **{"as": "curl"})
    await copied(client, 404, id="nobody", **{"as": "curl"})
    await copied(client, 400, id="x", **{"as": "pdf"})
    await copied(client, 400, id="bad", **{"as": "atif"})


async def test_what_has_no_atif_is_told(client: aiohttp.ClientSession, runs: Path) -> None:
    odd = {"role": "assistant", "content": "x", "tool_calls": [{}]}
    turn = Turn((1,), (2,), (-0.5,), (0,), odd, ({"role": "user", "content": "go"},))
    run = RecordedRun(runs / "guess-1")
    run.drop(Episode("odd", Task("t"), (turn,), Outcome.scored(1.0)), "stale")
    run.close()
    await copied(client, 400, id="odd", **{"as": "atif"})
    await copied(client, 400, id="bad", **{"as": "atif"})
    assert json.loads(await copied(client, id="odd", **{"as": "jsonl"}))["reward"] == 1.0
