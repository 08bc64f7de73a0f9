"""Keys that `areal-sdk keys` makes and revokes count at once in a server that runs."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner
from openai import OpenAI

from areal_sdk.cli.main import cli
from tests.loop.runs import SCRIPTED, finish, run_dir, start_command, told


def keys(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["keys", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.strip()


@contextmanager
def client(url: str, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key=key, max_retries=0) as made:
        yield made


def ask(url: str, key: str) -> str:
    with client(url, key) as caller:
        reply = caller.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        return reply.id


@pytest.mark.parametrize("processes", [1, 2])
def test_keys_are_made_and_revoked_while_a_server_runs(tmp_path: Path, processes: int) -> None:
    file = str(tmp_path / "keys.jsonl")
    first = keys("make", file, "alice/laptop")
    plugin = Path(__file__).with_name("held_engine.py")
    engine = SCRIPTED if processes == 1 else ("--plugin", str(plugin), "--set", "engine.name=held")
    server = start_command(
        *("serve", "--record", "--model", "tiny", "--port", "0", "--keys", file),
        *("--processes", str(processes), *engine),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
        env={"HELD_ENGINE": str(tmp_path)},
    )
    assert server.stdout is not None
    url = told(server.stdout, r"serving tiny at (\S+)")
    ask(url, f"{first}/monday")
    with client(url, f"{first}/monday") as caller:
        caller.post("/reward", body={"reward": 1.0}, cast_to=object)
    second = keys("make", file, "alice/ci")
    bobs = keys("make", file, "bob/phone")
    ask(url, f"{second}/tuesday")
    for number in range(8):  # connections of their own: with two processes both are met
        ask(url, f"{bobs}/{number}")
    assert keys("revoke", file, "alice/laptop") == "revoked alice/laptop"
    for number in range(8):
        with pytest.raises(openai.AuthenticationError, match="revoked"):
            ask(url, f"{first}/{number}")
        ask(url, f"{second}/again-{number}")
    assert keys("list", file).count("made") == 2
    for key, seen in ((second, ["alice/monday"]), (bobs, [])):
        for _ in range(4):
            with client(url, key) as caller:
                page: Any = caller.get("/traces", cast_to=object)
            assert [one["id"] for one in page["traces"]] == seen
    server.send_signal(signal.SIGINT)
    output = finish(server)
    assert first not in output
    if processes == 1:
        assert "key alice/laptop was revoked by" in output
    run = run_dir(tmp_path)
    for name, user, key in (
        ("alice/monday", "alice", "laptop"),
        ("alice/tuesday", "alice", "ci"),
        ("bob/3", "bob", "phone"),
    ):
        task = run.find_episode(name).episode.task
        assert (task.id, task.data) == (user, {"key": key})
    written = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    assert not any(key.encode() in written for key in (first, second, bobs))
