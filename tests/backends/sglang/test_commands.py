"""The commands around SGLang, as a user types them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema

from areal_sdk_sglang.install import SGLangEnvironment
from tests.loop.runs import children_of, finish, start_command, told

pytestmark = pytest.mark.slow

DEADLINE_S = 900.0
"""Seconds that a server may take to start: minutes, on a busy machine."""
IMPOSSIBLE: ResponseFormatJSONSchema = {
    "type": "json_schema",
    "json_schema": {"name": "impossible", "schema": {"type": "nonsense"}},
}


@pytest.fixture
def env(environment: SGLangEnvironment, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A registry of servers of this test's own, empty again at its end."""
    env = {"AREAL_SDK_SGLANG_ENV": str(environment.python.parents[1])}
    env["XDG_STATE_HOME"] = str(tmp_path / "state")
    yield env
    areal_sdk("engine", "stop", "--all", env=env)


def areal_sdk(
    *arguments: str, env: dict[str, str], code: int = 0
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "areal_sdk", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == code, done.stderr
    return done


def states(env: dict[str, str]) -> dict[str, str]:
    rows = json.loads(areal_sdk("engine", "status", "--json", env=env).stdout)
    return {row["name"]: row["state"] for row in rows}


@contextmanager
def serving(*arguments: str, env: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """`areal-sdk serve`, which has answered a caller; ended by SIGTERM."""
    command = ("serve", "--model", "tiny", "--port", "0", *arguments)
    process = start_command(*command, env=os.environ | env)
    assert process.stdout is not None
    try:
        url = told(process.stdout, r"serving tiny at (\S+)")
        ask(url, key=told(process.stdout, r"key: (\S+)"))
        yield process
        process.send_signal(signal.SIGTERM)
        finish(process)
    finally:
        process.kill()


def ask(url: str, key: str) -> None:
    """A chat is answered; a schema that nobody can enforce is the caller's error."""
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=DEADLINE_S)
    hello: ChatCompletionMessageParam = {"role": "user", "content": "Hello"}
    with client:
        create = client.chat.completions.create
        usage = create(model="tiny", messages=[hello], max_tokens=8).usage
        assert usage is not None
        assert 1 <= usage.completion_tokens <= 8
        with pytest.raises(openai.BadRequestError, match="Unsupported type"):
            create(model="tiny", messages=[hello], response_format=IMPOSSIBLE)


def test_a_started_server_is_listed_used_left_as_it_is_and_stopped(env: dict[str, str]) -> None:
    command = ("engine", "start", "tiny", "--port", "0", "--name", "mine", "--dtype", "float32")
    started = areal_sdk(*command, env=env)
    address = started.stdout.partition("ready: --engine ")[2].strip()
    assert states(env) == {"mine": "running"}
    again = areal_sdk(*command, env=env, code=2)
    assert "mine runs already: stop it first" in again.stderr
    assert "Uvicorn running" in areal_sdk("engine", "logs", "mine", "-n", "2000", env=env).stdout

    with serving("--engine", address, env=env):
        pass
    assert states(env) == {"mine": "running"}
    assert "mine is stopped" in areal_sdk("engine", "stop", "mine", env=env).stdout
    assert states(env) == {}


def test_what_serve_starts_ends_with_it(env: dict[str, str], tmp_path: Path) -> None:
    settings = ("--set", f"run.dir={tmp_path}", "--set", "engine.dtype=float32")
    with serving("--engine", "sglang", "--learn", *settings, env=env) as process:
        (server,) = children_of(process.pid, "sglang.launch_server")
    assert not Path(f"/proc/{server}").exists()
