"""Commands in a sandbox reach their session and nothing else, whatever they are."""

import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.errors.packages import Package
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.types import Episode, ErrorKind
from areal_sdk_sandbox import why_not_isolated
from areal_sdk_sandbox.run import _find_bubblewrap
from tests.rollout.playing import play
from tests.rollout.programs import ASK, EXAMPLES
from tests.rollout.rewarding import spec

needs_bubblewrap = pytest.mark.skipif(
    bool(why := why_not_isolated()), reason=why or "bubblewrap runs"
)


async def played(script: str, model_dir: Path, *, said: str = "4", **options: Any) -> Episode:
    rewards = options.pop("rewards", None)
    command = CommandAgent(f"sh -c {shlex.quote(script)}", sandbox=True, **options)
    command.keep_output(model_dir / "logs")
    return await play(command, [said] * 3, model_dir, infra_retries=0, rewards=rewards)


@needs_bubblewrap
async def test_a_command_gets_task_and_session_and_prints_its_verdict(model_dir: Path) -> None:
    episode = await played(ASK, model_dir)
    assert (episode.reward, episode.outcome.success) == (1.0, True), episode.outcome
    assert [turn.text for turn in episode.turns] == ["4", "4"]
    assert '{"said": ["4", "4"]}' in (model_dir / "logs" / "agent.log").read_text()


@needs_bubblewrap
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_a_shell_script_with_curl_plays_and_posts_its_reward(model_dir: Path) -> None:
    agent = CommandAgent(f"sh {EXAMPLES / 'vowels.sh'}", sandbox=True)
    episode = await play(agent, "aeux", model_dir, infra_retries=0)
    assert episode.outcome.reward == 0.75, episode.outcome


POSTS = f"""{sys.executable} -c '
import json, os, urllib.error, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + key}}
def post(path, **body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request).read()
post("/chat/completions", model="m", messages=[{{"role": "user", "content": "2+2?"}}])
try: post("/reward", reward=1000)
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
print(json.dumps({{"reward": 1000}}))
'"""


@needs_bubblewrap
async def test_where_rewards_are_configured_a_program_cannot_write_its_own(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with RewardPool([spec("length", per_word=0.5)], log_dir=tmp_path) as rewards:
        episode = await played(POSTS, model_dir, rewards=rewards)
    assert (episode.reward, episode.outcome.error) == (0.5, None), episode.outcome
    assert "409" in (said := (model_dir / "logs" / "agent.log").read_text())
    assert "The configured rewards (length) alone judge this episode: post no reward" in said
    assert "gives a verdict, which does not count" in caplog.text


OPENAI_AGENT = """
import json, sys
from openai import OpenAI
task = json.load(sys.stdin)
said = OpenAI().chat.completions.create(
    model=task["model"], messages=[{"role": "user", "content": task["data"]["question"]}], stream=True)
text = "".join(part.choices[0].delta.content or "" for part in said if part.choices)
print(json.dumps({"reward": float(text == task["data"]["answer"])}))
"""

NODE_AGENT = """
import { readFileSync } from "node:fs";
const { data, model } = JSON.parse(readFileSync(0, "utf8"));
const reply = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
  method: "POST",
  headers: { "content-type": "application/json", authorization: "Bearer " + process.env.OPENAI_API_KEY },
  body: JSON.stringify({ model, messages: [{ role: "user", content: data.question }] }),
});
const said = (await reply.json()).choices[0].message.content;
console.log(JSON.stringify({ reward: Number(said === data.answer) }));
"""


NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node.js")


@needs_bubblewrap
@pytest.mark.parametrize(
    ("program", "name", "code"),
    [
        pytest.param(sys.executable, "agent.py", OPENAI_AGENT, id="python"),
        pytest.param(NODE, "agent.mjs", NODE_AGENT, id="node", marks=needs_node),
    ],
)
async def test_the_clients_of_python_and_node_play(
    program: str, name: str, code: str, model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(code)
    agent = CommandAgent(f"{program} {tmp_path / name}", sandbox=True)
    episode = await play(agent, ["4"], model_dir, infra_retries=0)
    assert episode.outcome.reward == 1.0, episode.outcome


class Outside:
    """The things that a command may not reach."""

    def __init__(self, home: Path) -> None:
        self.secret = home / "secret"
        self.secret.write_text("SECRET-OF-THE-TEST")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self.tcp.getsockname()[1]


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    found = Outside(tmp_path_factory.mktemp("home"))
    with found.tcp:
        yield found


HOSTILE = {
    "writes beside its files": "echo x > {home}/harm",
    "writes over a file": "echo x > {home}/secret",
    "writes to the system": "echo x > /usr/harm || echo x > /etc/harm",
    "writes to its own program": "echo x >> {python}",
    "reads a secret of home": "grep -q SECRET {home}/secret",
    "lists the home directory": "ls {home} || ls /root/* || ls /home/*",
    "reads the variables of areal-sdk": "grep -qz AREAL_SDK_TEST_KEY /proc/*/environ || printenv AREAL_SDK_TEST_KEY",
    "connects to another port": "{python} -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'",
    "connects to another port of the machine": (
        "{python} -c 'import socket; socket.create_connection((socket.gethostbyname(socket.gethostname()), {port}), 2)'"
    ),
    "connects to the internet": "{python} -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)'",
    "ends areal-sdk": "kill -9 {pid}",
}
"""Each ends with 0 if it got what it wanted."""


@needs_bubblewrap
async def test_a_hostile_command_gets_nothing(
    model_dir: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_SDK_TEST_KEY", "SECRET-OF-THE-TEST")
    home = outside.secret.parent
    place = {"home": home, "python": sys.executable, "port": outside.port, "pid": os.getpid()}
    tries = [
        f"if {{ {script.format(**place)}; }} >&2; then echo 'GOT: {name}'; fi"
        for name, script in {**HOSTILE, "writes where it may": "echo x > here"}.items()
    ]
    outcome = (await played("; ".join(tries), model_dir)).outcome
    assert (outcome.error, outcome.reward) == (None, None), outcome
    log = (model_dir / "logs" / "agent.log").read_text()
    assert [line for line in log.splitlines() if "GOT" in line] == ["GOT: writes where it may"]
    assert [path.name for path in home.iterdir()] == ["secret"]
    assert outside.secret.read_text() == "SECRET-OF-THE-TEST"
    outside.tcp.setblocking(False)
    with pytest.raises(BlockingIOError):
        outside.tcp.accept()


BOMB = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
LIMITED = {
    "a fork bomb": (f"{sys.executable} -c '{BOMB}'", {"processes": 16}, "processes"),
    "memory": (f"{sys.executable} -c 'import time; x = b\"x\" * (100 << 20); time.sleep(60)'; sleep 60", {"memory_mb": 64}, "memory"),
}  # fmt: skip


@needs_bubblewrap
@pytest.mark.parametrize(("script", "options", "limit"), LIMITED.values(), ids=LIMITED)
async def test_a_limit_is_an_error_of_the_agent_and_is_named(
    script: str, options: dict[str, Any], limit: str, model_dir: Path
) -> None:
    outcome = (await played(script, model_dir, **options)).outcome
    assert (outcome.error, outcome.reward) == (ErrorKind.AGENT, None), outcome
    assert f"ended at its {limit} limit" in outcome.message


@needs_bubblewrap
async def test_what_a_command_needs_and_does_not_see_is_named(
    model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "agent.sh").write_text(f"cat {tmp_path}/words.txt >&2 && echo '{{\"reward\": 1}}'")
    (tmp_path / "words.txt").write_text("apple")
    line = f"sh {tmp_path / 'agent.sh'}"
    blind = await play(CommandAgent(line, sandbox=True), [], model_dir, infra_retries=0)
    assert "No such file" in blind.outcome.message
    assert "it sees the files that the command names, and those of agent.readable" in (
        blind.outcome.message
    )
    seeing = CommandAgent(line, sandbox=True, readable=[str(tmp_path / "words.txt")])
    assert (await play(seeing, [], model_dir, infra_retries=0)).reward == 1.0


@needs_bubblewrap
async def test_a_command_that_is_late_is_ended(model_dir: Path) -> None:
    command = CommandAgent("sh -c 'sleep 60'", sandbox=True)
    episode = await play(command, [], model_dir, infra_retries=0, episode_timeout_s=1.0)
    assert episode.outcome.error == ErrorKind.TIMEOUT


def test_where_nothing_isolates_a_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/bin")
    monkeypatch.setattr(
        "shutil.which", lambda name, **_: None if name == "bwrap" else f"/bin/{name}"
    )
    _find_bubblewrap.cache_clear()
    try:
        with pytest.raises(
            ConfigError, match=r"it is not installed.*install bubblewrap .*or leave"
        ):
            CommandAgent("true", sandbox=True)
    finally:
        _find_bubblewrap.cache_clear()


def test_without_its_package_a_sandbox_names_the_line_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Package, "is_installed", False)
    with pytest.raises(ConfigError, match=r"pip install \S+/plugins/areal-sdk-sandbox"):
        CommandAgent("true", sandbox=True)
    CommandAgent("true")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sandbox": True, "warm": True}, "a sandbox ends with its episode"),
        ({"memory_mb": 100}, "are for a command in a sandbox: add --sandbox"),
        pytest.param(
            {"sandbox": True, "memory_mb": 0},
            "agent.memory_mb = 0: give a positive number",
            marks=needs_bubblewrap,
        ),
        pytest.param(
            {"sandbox": True, "readable": ["/nowhere"]},
            "agent.readable: there is no /nowhere",
            marks=needs_bubblewrap,
        ),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CommandAgent("true", **options)


@needs_bubblewrap
def test_a_shim_is_refused_with_the_program_to_name(tmp_path: Path) -> None:
    shim = tmp_path / "shims" / "python3"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexec elsewhere\n")
    shim.chmod(0o755)
    with pytest.raises(ConfigError, match=f"name the program itself, such as {sys.executable}"):
        CommandAgent(f"{shim} -c pass", sandbox=True)
