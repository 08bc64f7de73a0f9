"""Users of `areal-sdk serve` read and rate their own recorded sessions, over HTTP, in a server as a user runs it."""

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner
from openai import OpenAI

from areal_sdk.cli.main import cli
from tests.loop.runs import SCRIPTED, finish, start_command, told

KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("alice", "bob", "admin")}


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    run: Path

    def client(self, user: str, session: str = "") -> OpenAI:
        key = KEYS[user] + (f"/{session}" if session else "")
        return OpenAI(base_url=self.url, api_key=key, max_retries=0)

    def get(self, user: str, path: str) -> Any:
        with self.client(user) as caller:
            return caller.get(f"/traces{path}", cast_to=object)

    def rate(self, user: str, session: str, **said: Any) -> Any:
        with self.client(user) as caller:
            return caller.post(f"/traces/{session}/feedback", body=said, cast_to=object)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("served")
    users = directory / "users.toml"
    users.write_text("".join(f'[{n}]\napi_key = "{KEYS[n]}"\n' for n in ("alice", "bob")))
    process = start_command(
        *("serve", "--record", "--model", "tiny", "--port", "0", *SCRIPTED),
        *("--users", str(users), "--set", f"run.dir={directory}", "--set", "run.name=run"),
        env={"AREAL_SDK_ADMIN_KEY": KEYS["admin"]},
    )
    assert process.stdout is not None
    served = Server(told(process.stdout, r"serving tiny at (\S+)"), directory / "run")
    for user, session, reward in (
        ("alice", "monday", 1.0),
        ("alice", "tuesday", 0.0),
        ("bob", "monday", 1.0),
    ):
        with served.client(user, session) as caller:
            for _ in range(2):
                messages: Any = [{"role": "user", "content": f"{user} asks on {session}"}]
                caller.chat.completions.create(model="m", messages=messages, max_tokens=4)
            caller.post("/reward", body={"reward": reward}, cast_to=object)
    yield served
    process.send_signal(signal.SIGINT)
    finish(process)


def test_users_see_their_own_sessions_alone(server: Server) -> None:
    seen = {user: [one["id"] for one in server.get(user, "")["traces"]] for user in KEYS}
    assert seen["alice"] == ["alice/tuesday", "alice/monday"]
    assert seen["bob"] == ["bob/monday"]
    assert [*reversed(seen["admin"])] == ["alice/monday", "alice/tuesday", "bob/monday"]
    page = server.get("alice", "?limit=1")
    assert (len(page["traces"]), page["has_more"]) == (1, True)
    page = server.get("alice", "?limit=1&before=alice/tuesday")
    assert ([one["id"] for one in page["traces"]], page["has_more"]) == (["alice/monday"], False)
    shown = server.get("alice", "/monday")
    assert shown == server.get("admin", "/alice/monday")
    assert len(shown["turns"]) == 2
    assert shown["turns"][0]["messages"][0]["content"] == "alice asks on monday"
    for path in ("/bob/monday", "/nothing"):
        with pytest.raises(openai.NotFoundError, match="of yours"):
            server.get("alice", path)
    with pytest.raises(openai.NotFoundError, match="of yours"):
        server.rate("bob", "alice/monday", comment="not mine")
    with (
        pytest.raises(openai.AuthenticationError),
        OpenAI(base_url=server.url, api_key="sk-nobody-0123456789", max_retries=0) as stranger,
    ):
        stranger.get("/traces", cast_to=object)


def test_scores_and_comments_are_kept_and_used(server: Server) -> None:
    server.rate("alice", "monday", scores={"helpful": 0, "polite": 1})
    server.rate("alice", "monday", scores={"helpful": 1}, comment="write to me@example.com")
    rated = server.rate("alice", "alice/tuesday", scores={"helpful": 0.5}, turn=1)
    assert rated["feedback"]["turn_scores"] == {"1": {"helpful": 0.5}}
    said = server.get("alice", "/monday")["feedback"]
    assert said["scores"] == {"helpful": 1.0, "polite": 1.0}
    assert said["comments"] == ["write to me@example.com"]
    run = str(server.run)
    found = CliRunner().invoke(
        cli, ["traces", run, "--score", "polite", "--min-score", "1"], catch_exceptions=False
    )
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert {row["user"] for row in rows} == {"alice"}
    assert all(row["scores"] == {"polite": 1.0} for row in rows)
    assert "me@example.com" not in rows[0]["comments"][0]
    arms = CliRunner().invoke(cli, ["traces", "arms", run, "--score", "helpful"])
    assert "3 sessions, 1 scored, mean 1.000" in arms.output


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "scores, a comment"),
        ({"scores": {"reward": 1}}, "POST /v1/reward"),
        ({"scores": {"good": "yes"}}, "must be a number"),
        ({"scores": {"a b": 1}}, "names no score"),
        ({"comment": "x" * 5000}, "4000 characters"),
        ({"comment": "x", "turn": 9}, "2 turns"),
        ({"stars": 5}, '"scores"'),
    ],
)
def test_what_is_no_feedback_is_refused_with_the_cure(
    server: Server, said: dict[str, Any], why: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=why):
        server.rate("bob", "monday", **said)


def test_a_sessions_own_key_reads_nothing(server: Server) -> None:
    with server.client("admin") as admin:
        opened: Any = admin.post(
            server.url.removesuffix("/v1") + "/control/sessions",
            body={"user": "alice"},
            cast_to=object,
        )
    key = opened["sessions"][0]["api_key"]
    with (
        OpenAI(base_url=server.url, api_key=key, max_retries=0) as agent,
        pytest.raises(openai.PermissionDeniedError, match="the key of the user"),
    ):
        agent.get("/traces", cast_to=object)


def test_a_server_that_keeps_nothing_says_how_to_keep_it(tmp_path: Path) -> None:
    process = start_command(*("serve", "--model", "tiny", "--port", "0", *SCRIPTED))
    assert process.stdout is not None
    url, key = told(process.stdout, r"serving tiny at (\S+)"), told(process.stdout, r"key: (\S+)")
    with (
        OpenAI(base_url=url, api_key=key, max_retries=0) as caller,
        pytest.raises(openai.ConflictError, match="serve --record"),
    ):
        caller.get("/traces", cast_to=object)
    process.send_signal(signal.SIGINT)
    finish(process)
