"""Five tasks in Harbor's format, played by a scripted model and by commands, and judged by their own verifiers."""

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk import ConfigError, Episode, Task
from areal_sdk.testing import check_plugin, run_agent, tool_call
from areal_sdk.types import OutcomeKind
from areal_sdk_harbor import machine
from areal_sdk_harbor.agent import Harbor
from areal_sdk_harbor.command import harbor
from areal_sdk_harbor.dataset import directories, tasks
from areal_sdk_harbor.definition import read_definition
from areal_sdk_harbor.image import RefusedError, why_it_fetches
from areal_sdk_harbor.trial import Room, read_reward, ready, solve, verify
from areal_sdk_sandbox import why_not_isolated

TASKS = Path(__file__).parent / "tasks"
NAMES = ["count-errors", "csv-to-json", "fix-median", "sort-photos", "write-greeting"]
GREET = "echo 'good morning, harbor' > greeting.txt"
pytestmark = pytest.mark.skipif(bool(why := why_not_isolated()), reason=why or "bubblewrap runs")


def a_task(name: str = "write-greeting", *, root: Path = TASKS) -> Task:
    return Task(name, {"path": str(root / name)})


def changed(tmp_path: Path, name: str = "write-greeting", **files: str) -> Task:
    """A copy of a task with other files: `test_sh`, `task_toml`, `dockerfile`."""
    places = {
        "test_sh": "tests/test.sh",
        "task_toml": "task.toml",
        "dockerfile": "environment/Dockerfile",
    }
    shutil.copytree(TASKS / name, tmp_path / name)
    for key, text in files.items():
        (tmp_path / name / places[key]).write_text(text)
    return a_task(name, root=tmp_path)


async def played(task: Task, *commands: str, agent: Harbor | None = None) -> Episode:
    """An episode whose model calls the shell with these commands, and then says that it is done."""
    script = [*(tool_call("shell", command=one) for one in commands), "Done."]
    return await run_agent(agent or Harbor(), task, engine=script, timeout_s=120.0)


def verdict(episode: Episode) -> tuple[float | None, bool | None]:
    return episode.reward, episode.outcome.success


# tasks that are as they should be


@pytest.mark.parametrize("name", NAMES)
async def test_the_known_solution_has_the_reward_and_no_work_has_none(name: str) -> None:
    task = read_definition(TASKS / name)
    async with ready(task, Room()) as untouched:
        before = await verify(untouched, task)
    async with ready(task, Room()) as solved:
        assert await solve(solved, task) == ""
        after = await verify(solved, task)
    assert (before.reward, after.reward) == (0.0, 1.0)


def test_the_command_checks_each_task(tmp_path: Path) -> None:
    said = CliRunner().invoke(harbor, ["check", str(TASKS)])
    assert said.exit_code == 0, said.output
    assert "write-greeting: without work 0, solved 1\n" in said.output
    assert "5 of 5 tasks are sound" in said.output
    changed(tmp_path, test_sh="echo 1 > /logs/verifier/reward.txt")
    said = CliRunner().invoke(harbor, ["check", str(tmp_path)])
    assert (said.exit_code, "0 of 1 tasks are sound" in said.output) == (1, True)


def test_tasks_are_split_by_name_or_by_folder(tmp_path: Path) -> None:
    assert [task.id for task in tasks("eval", path=str(TASKS), held_out=1.0)] == [
        f"examples/{name}" for name in NAMES
    ]
    parts = [{task.id for task in tasks(one, path=str(TASKS))} for one in ("train", "eval")]
    assert not parts[0] & parts[1]
    assert len(parts[0] | parts[1]) == 5
    for split in ("train", "eval"):
        shutil.copytree(TASKS / "write-greeting", tmp_path / split / f"{split}-greeting")
    assert [Path(t.data["path"]).name for t in tasks("eval", path=str(tmp_path))] == [
        "eval-greeting"
    ]
    for options in ({"path": ""}, {"path": "/no/such"}, {"path": str(TASKS), "held_out": 2.0}):
        with pytest.raises(ConfigError, match=r"give (the directory of tasks|a share)"):
            list(tasks("train", **options))  # type: ignore[arg-type]


# the agent with a shell


async def test_a_model_solves_a_task_with_the_shell() -> None:
    episode = await played(a_task(), "pwd; ls /tests /solution; false", GREET)
    assert verdict(episode) == (1.0, True)
    asked, _, first, *_ = episode.messages[1:]
    assert "greeting.txt" in asked["content"]
    assert first["content"] == "/app\n/solution:\n\n/tests:\n[exit code 1]"


async def test_files_stay_between_calls_and_so_do_servers() -> None:
    serve = "python3 -m http.server 8000 >/dev/null 2>&1 & sleep 1; echo up"
    ask = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/a').read())\""
    episode = await played(a_task(), f"echo one > a; {serve}", ask)
    assert [m["content"] for m in episode.messages if m["role"] == "tool"] == ["up", "b'one\\n'"]


async def test_what_a_model_gets_wrong_is_answered() -> None:
    wrong = [tool_call("jump"), tool_call("shell", code="ls"), tool_call("shell", command="a\0b")]
    script = [*wrong, tool_call("shell", command="no-such-program"), tool_call("shell", command="")]
    episode = await run_agent(Harbor(), a_task(), engine=[*script, "Done."])
    said = [str(m["content"]) for m in episode.messages if m["role"] == "tool"]
    assert said[:2] == ['error: call shell with {"command": "..."}'] * 2
    assert said[2] == "error: a command has no zero bytes"
    assert said[3].endswith("[exit code 127]")
    assert said[4] == "[it wrote nothing]"
    assert verdict(episode) == (0.0, False)


async def test_the_output_of_a_call_is_bounded_in_time_and_length() -> None:
    agent = Harbor(command_timeout_s=1.0, max_characters=40)
    episode = await played(a_task(), "yes", "sleep 60", "echo fine", agent=agent)
    first, second, third = [m["content"] for m in episode.messages if m["role"] == "tool"]
    assert first.startswith("[the end of ")
    assert first.endswith("y\ny\n[ended after 1 s]")
    assert (second, third) == ("[ended after 1 s]", "fine")


async def test_a_limit_of_turns_ends_the_work_and_not_the_verdict() -> None:
    script = [tool_call("shell", command=GREET)] * 9
    episode = await run_agent(Harbor(), a_task(), engine=script, max_turns=2)
    assert verdict(episode) == (1.0, True)


async def test_the_time_of_the_task_ends_the_work_and_not_the_verdict(tmp_path: Path) -> None:
    task = changed(tmp_path, task_toml="[agent]\ntimeout_sec = 2.0\n")
    episode = await played(task, GREET, "sleep 60", "rm greeting.txt")
    assert verdict(episode) == (1.0, True)
    assert len(episode.turns) == 2


async def test_other_numbers_of_a_verdict_are_metrics() -> None:
    half = await played(a_task("count-errors"), "echo '{\"errors\": 10}' > answer.json")
    assert verdict(half) == (0.5, False)
    assert half.outcome.metrics == {"is_json": 1.0}


# an agent of one's own


CALLER = """
import json, os, sys, urllib.error, urllib.request

def post(path, body):
    url = os.environ["OPENAI_BASE_URL"] + path
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    try:
        return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
    except urllib.error.HTTPError as error:
        return error.code

order = json.load(sys.stdin)
assert json.load(open(os.environ["AREAL_SDK_TASK"])) == order
ask = {"model": order["model"], "messages": [{"role": "user", "content": order["data"]["instruction"]}]}
said = post("/chat/completions", ask)["choices"][0]["message"]["content"]
open("greeting.txt", "w").write(said)
print({"reward": 1}, post("/reward", {"reward": 1.0}), post("/../reward", {"reward": 1.0}))
open("refused", "w").write(str(post("/reward", {"reward": 1.0})))
"""


async def test_a_command_works_in_the_sandbox_and_asks_the_model(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(CALLER)
    agent = Harbor(command=f"{sys.executable} {tmp_path / 'agent.py'}")
    right = await run_agent(agent, a_task(), engine=["good morning, harbor"])
    assert verdict(right) == (1.0, True)
    wrong = await run_agent(agent, a_task(), engine=["good evening"])
    assert verdict(wrong) == (0.0, False), "neither what it printed nor what it posted counts"
    assert len(wrong.turns) == 1


async def test_a_command_that_fails_is_an_error_of_the_agent(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise SystemExit('no key')")
    agent = Harbor(command=f"{sys.executable} {tmp_path / 'agent.py'}")
    episode = await run_agent(agent, a_task(), engine=[])
    assert episode.outcome.kind is OutcomeKind.ERROR
    assert "no key\n[exit code 1] (in a sandbox" in episode.outcome.message


async def test_nothing_asks_the_model_while_the_verifier_runs(tmp_path: Path) -> None:
    ask = CALLER.replace("order = json.load(sys.stdin)", "order = json.load(open('/app/order'))")
    (tmp_path / "agent.py").write_text(
        "import os, shutil\nshutil.copy(os.environ['AREAL_SDK_TASK'], '/app/order')\n"
        f"keep = dict(os.environ)\nopen('/app/ask.py', 'w').write({ask!r})\n"
        "import json; json.dump(keep, open('/app/env', 'w'))\n"
    )
    test = (
        "python3 -c \"import json, os; os.environ.update(json.load(open('/app/env'))); exec(open('/app/ask.py').read())\""
        " && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    )
    agent = Harbor(command=f"{sys.executable} {tmp_path / 'agent.py'}")
    task = changed(tmp_path, test_sh=test)
    episode = await run_agent(agent, task, engine=["good morning, harbor"] * 3)
    assert verdict(episode) == (0.0, False)
    assert episode.turns == ()


# verifiers that are broken, and agents that break them


@pytest.mark.parametrize(
    ("test_sh", "why"),
    [
        ("sleep 600", "ran longer than 1 s"),
        ("echo done; exit 3", "wrote no reward: exit code 3: done"),
        ("echo nan > /logs/verifier/reward.txt", "reward.txt holds 'nan'"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', "none is called reward"),
        ("ln -s /app /logs/verifier/reward.txt", "Too many levels of symbolic links"),
        ("mkfifo /logs/verifier/reward.txt", "reward.txt is no file"),
        ("kill -9 $PPID; sleep 9", "the sandbox was ended"),
    ],
)
async def test_a_broken_verifier_abstains(tmp_path: Path, test_sh: str, why: str) -> None:
    task = changed(tmp_path, test_sh=test_sh, task_toml="[verifier]\ntimeout_sec = 1.0\n")
    agent = Harbor()
    first = await played(task, GREET, agent=agent)
    assert (first.outcome.kind, first.reward) == (OutcomeKind.ABSTAIN, None)
    assert why in first.outcome.message
    second = await run_agent(agent, task, engine=[])
    assert second.outcome.kind is OutcomeKind.ABSTAIN
    assert second.turns == (), "a verifier that is known to be broken is not played for"


FOREVER = "while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; done"


@pytest.mark.parametrize(
    "command",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json",
        f"setsid bash -c '{FOREVER}' >/dev/null 2>&1 & disown; sleep 0.2",
        "ln -s /app /logs/verifier; echo 1 > /app/reward.json; ln -s /app/reward.json /logs/reward.txt",
        "printf 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 0 /tests/test.sh",
        "mkdir -p /tests/a/b; chmod 0 /tests/a/b /tests/a; mkdir -p /logs/verifier; chmod 0 /logs/verifier",
        "mkdir -p ~/bin; printf '#!/bin/sh\\necho good morning, harbor' > ~/bin/cat; chmod +x ~/bin/cat",
        "ln -s /etc/passwd greeting.txt; ln -s / root; cat /etc/shadow root/root/.ssh/*",
        "head -c 300000000 /dev/urandom > /tests/big; head -c 300000000 /dev/urandom > /logs/big",
    ],
    ids=["writes", "writes-on", "links", "test-file", "closed", "cat", "leaves", "full"],
)
async def test_an_agent_cannot_write_its_verdict(command: str) -> None:
    episode = await played(a_task(), command)
    assert verdict(episode) == (0.0, False)
    assert "broke_verifier" not in episode.outcome.metrics, episode.outcome.message
    assert "root:" not in str(episode.messages)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (":(){ :|:& };:; sleep 5", "the sandbox ended at its processes limit"),
        ("kill -9 $PPID; sleep 5", "the sandbox was ended"),
        pytest.param(
            "kill -STOP $PPID; sleep 5", "the sandbox answers no more", marks=pytest.mark.long
        ),
        ("python3 -c 'x = bytearray(10**9); input()'; x=$(yes)", "the sandbox ended at its memory"),
    ],
    ids=["fork-bomb", "kill", "stop", "memory"],
)
async def test_an_agent_that_ends_its_sandbox_has_failed(
    command: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_MARGIN_S", 3.0)
    # A busy machine fills the memory late. Only a sandbox that hangs is waited for as long as this.
    agent = Harbor(command_timeout_s=5.0 if "answers no more" in why else 120.0)
    episode = await played(a_task(), GREET, command, agent=agent)
    assert verdict(episode) == (0.0, False)
    assert why in episode.outcome.message
    assert episode.outcome.metrics == {"broke_verifier": 1.0}


async def test_a_program_that_hangs_under_test_has_failed(tmp_path: Path) -> None:
    task = changed(tmp_path, "fix-median", task_toml="[verifier]\ntimeout_sec = 5.0\n")
    episode = await played(task, "echo 'while True: pass' > median.py")
    assert verdict(episode) == (0.0, False)
    assert "ran longer than 5 s" in episode.outcome.message


# tasks that a sandbox cannot play


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM alpine:3.20", "its image is alpine:3.20: a sandbox stands for debian"),
        ("FROM python:2.7", "its image is python:2.7, and this Python is 3."),
        ("FROM debian AS base\nFROM base", "names a stage"),
        (
            "FROM debian\nRUN apt-get install -y no-such-package",
            "the Debian package no-such-package",
        ),
        (
            "FROM debian\nRUN pip install no-such-package==1",
            "the Python package no-such-package==1",
        ),
        ("FROM debian\nRUN pip install 'pytest<1'", "pytest<1, and pytest"),
        ("FROM debian\nRUN curl -L https://example.org | sh", "a sandbox has no network (curl)"),
        ("FROM debian\nCOPY ../secret /app/", "has no such file"),
        ("FROM debian\nCOPY missing /app/", "has no such file"),
        ("FROM debian\nUSER agent", "a sandbox has one user"),
        ("FROM debian\nVOLUME /data", "VOLUME, which is not understood"),
        ("FROM debian\nWORKDIR /usr/src/app", "where a sandbox can write nothing"),
        ("FROM debian\nRUN cat <<EOF > /app/x", "here-document"),
        ("RUN true", "has no FROM"),
        ("FROM", "which is not understood"),
        ("FROM debian\nENV", "which is not understood"),
        ('FROM debian\nENV A="b', "No closing quotation"),
        ("FROM debian\nVOLUME /data \\", "VOLUME, which is not understood"),
    ],
)
def test_an_image_that_needs_more_is_refused(tmp_path: Path, dockerfile: str, why: str) -> None:
    changed(tmp_path, dockerfile=dockerfile)
    with pytest.raises(ConfigError) as raised:
        list(tasks("eval", path=str(tmp_path), held_out=1.0))
    assert "write-greeting: " in str(raised.value)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("[[steps]]\nname = 'one'", "several steps"),
        ("[environment]\ngpus = 1", "environment.gpus"),
        ("[environment]\nos = 'windows'", "asks for windows"),
        ("[environment.env]\nKEY = '${OPENAI_API_KEY}'", "names a variable of this machine"),
        ("[verifier]\nenvironment_mode = 'separate'", "a container of its own"),
        ("[verifier]\ntimeout_sec = 0", "give a positive number"),
        ("[agent]\nuser = 'agent'", "a sandbox has one user"),
        ("agent = 1", "agent = 1 is no table"),
        ("[environment]\nenv = 'A=b'", "env = 'A=b' is no table"),
        ('[environment]\nenv = {A = "b\\u0000"}', "no variable of a process"),
        ("[environment]\nmemory_mb = 'big'", "memory_mb = 'big': give a positive number"),
        ("[environment]\ndocker_image = 3", "docker_image = 3 is no text"),
        ("[environment]\nworkdir = 3", "workdir = 3 is no text"),
        ("[agent]\ntimeout_sec = inf", "give a positive number"),
        ("[", "it cannot be read"),
    ],
)
def test_settings_that_need_more_are_refused(tmp_path: Path, settings: str, why: str) -> None:
    changed(tmp_path, task_toml=settings)
    with pytest.raises(RefusedError, match=why.replace("[", r"\[")):
        read_definition(tmp_path / "write-greeting")


def test_a_task_that_is_left_out_takes_no_other_of_its_name(tmp_path: Path) -> None:
    changed(tmp_path / "a", dockerfile="FROM alpine")
    changed(tmp_path / "b")
    (one,) = tasks("eval", path=str(tmp_path), held_out=1.0, skip_refused=True)
    assert one.data["path"] == str(tmp_path / "b" / "write-greeting")


def test_links_that_lead_out_of_a_task_are_refused(tmp_path: Path) -> None:
    changed(tmp_path)
    task = tmp_path / "write-greeting"
    (task / "tests" / "expected").symlink_to("/etc/passwd")
    with pytest.raises(RefusedError, match=r"tests/: link expected leads out .*, to /etc/passwd"):
        read_definition(task)
    (task / "tests" / "expected").unlink()
    (task / "environment" / "data").symlink_to("../../..")
    (task / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /app\nCOPY . .\n")
    with pytest.raises(RefusedError, match=r"COPY \.: link data leads out"):
        read_definition(task)


def test_a_command_that_fails_in_the_sandbox_refuses_the_task_and_others_play(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changed(tmp_path, dockerfile="FROM debian\nWORKDIR /app\nRUN echo no > /etc/issue\n")
    shutil.copytree(TASKS / "fix-median", tmp_path / "fix-median")
    with pytest.raises(
        ConfigError, match=r"1 of 2 tasks.*\n.*its image cannot be made: RUN echo no"
    ):
        list(tasks("eval", path=str(tmp_path), held_out=1.0))
    left = list(tasks("eval", path=str(tmp_path), held_out=1.0, skip_refused=True))
    assert [task.id for task in left] == ["examples/fix-median"]
    assert "task write-greeting is left out: " in caplog.text


def test_a_verifier_that_fetches_is_refused(tmp_path: Path) -> None:
    changed(tmp_path, test_sh="#!/bin/bash\napt-get update\napt-get install -y curl\n")
    with pytest.raises(RefusedError, match=r"tests/test.sh fetches packages \(line 2: apt-get\)"):
        read_definition(tmp_path / "write-greeting")
    for line in ("if uvx pytest; then", "x=$(curl -s http://a)", "python3 -m pip install pytest"):
        assert why_it_fetches(line), line


def test_rewards_are_finite_numbers() -> None:
    for text in ("", "one", "inf", "[1]"):
        assert read_reward(text, is_json=False).reward is None
    for text in (
        "",
        "{}",
        '{"reward": "1"}',
        '{"reward": 1e999}',
        f'{{"reward": 1{"0" * 400}}}',
        "[1]",
        "null",
    ):
        assert read_reward(text, is_json=True).reward is None
    assert read_reward("1", is_json=True).reward == 1.0
    assert read_reward('{"accuracy": 0.5}', is_json=True).reward == 0.5


async def test_a_task_of_another_dataset_is_an_error() -> None:
    episode = await run_agent(Harbor(), Task("a", {"question": "?"}), engine=[])
    assert "no data['path'], it has: question" in episode.outcome.message


async def test_the_plugin_keeps_the_contracts() -> None:
    checked = await check_plugin("areal-sdk-harbor", options={"tasks.harbor": {"path": str(TASKS)}})
    assert "agent 'harbor'" in checked


def found(root: Path) -> list[str]:
    return [path.name for path in directories(root)]


def test_tasks_are_found_two_levels_deep(tmp_path: Path) -> None:
    shutil.copytree(TASKS, tmp_path / "set")
    assert found(tmp_path) == found(TASKS) == NAMES
    assert found(TASKS / NAMES[0]) == NAMES[:1]
