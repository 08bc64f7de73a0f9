"""A mistake of a user on the command line is one line that names the cure, no traceback."""

import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from areal_sdk.cli.main import _run as exit_code
from tests.loop.runs import SCRIPTED_ENGINE

AGENT = """
from areal_sdk import Agent, Task


class Greeter(Agent):
    async def run(self, task, context):
        await context.generate([{"role": "user", "content": "Hi!"}])
        return 1.0


def tasks(split):
    yield Task("one", {"split": split})
"""

CALLS = """
from openai import AsyncOpenAI
from areal_sdk import Agent, Task


class Caller(Agent):
    async def run(self, task, context):
        client = AsyncOpenAI(base_url=context.base_url, api_key="k", max_retries=0)
        await client.models.list()


def tasks(split):
    yield Task("one")
"""

REWARD = """
from areal_sdk import hookimpl


def judge(episode, *, strict: bool = False):
    return 1.0


@hookimpl
def register_rewards(register):
    register("my.judge", judge)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the command runs: good files, and every kind of bad one."""
    files = {
        "agent.py": AGENT,
        "judge.py": REWARD,
        "broken.py": "import areal_sdk\n1 / 0\n",
        "no_agent.py": "x = 1\n",
        "no_run.py": "import areal_sdk\nclass Mood(areal_sdk.Agent):\n    async def runn(self): ...\n",
        "two.py": AGENT + "\n\nclass Other(Greeter):\n    pass\n",
        "functions.py": "async def polite(task, context): ...\ndef rude(task, context): ...\n",
        "bad.jsonl": '{"prompt": "a"}\n{"prompt": oops}\n',
        "empty.jsonl": "\n",
        "bad.toml": "[rollout\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The real command."""
    return subprocess.run(
        [sys.executable, "-m", "areal_sdk", *arguments], capture_output=True, text=True, timeout=240
    )


HARMLESS = ("Usage:", "Try ", "starting:")


def only_line(told: str) -> str:
    """The one line on stderr, without click's words on how a command is used, and without what was
    begun."""
    assert "Traceback" not in told
    lines = [line for line in told.splitlines() if not line.startswith(HARMLESS)]
    (line,) = filter(None, lines)
    return line


EVAL = ("eval", "agent.py", "--model", "tiny")
CHAT = ("eval", "chat", "--model", "tiny")
TRAIN = ("train", "agent.py", "--model", "tiny", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("eval", "nowhere.py"), "no such file"),
        (("eval", "broken.py"), "line 2: ZeroDivisionError"),
        (("eval", "no_agent.py"), "define `class MyAgent(areal_sdk.Agent)`"),
        (("eval", "no_run.py"), "Mood in no_run.py has no `async def run(self, task, context)`"),
        (("eval", "two.py"), "pick one, as in two.py::Greeter"),
        (("eval", "functions.py"), "as in functions.py::polite (it has polite, rude)"),
        (("eval", "agent.py::Greter"), "agents there: Greeter"),
        (("eval", "agent.py", "--model", "tinny"), "did you mean 'tiny'?"),
        (("eval", "agent.py", "--model", "runs/nope"), "no such run: runs/nope"),
        ((*CHAT, "--tasks", "bad.jsonl"), "line 2: not valid JSON"),
        ((*CHAT, "--tasks", "empty.jsonl"), "holds no tasks"),
        ((*CHAT, "--tasks", "nowhere.jsonl"), "no such file of tasks"),
        ((*EVAL, "--samples", "0"), "eval.samples = 0: input should be greater than 0"),
        ((*EVAL, "--config", "bad.toml"), "not valid TOML"),
        ((*EVAL, "--base-url", "example.com"), "write http://HOST:PORT/v1"),
        (
            (*EVAL, "--base-url", "http://127.0.0.1:9/v1", "--reward", "exact_match"),
            "another endpoint records no turns, so rewards have nothing to look at",
        ),
        (
            (*EVAL, "--base-url", "http://127.0.0.1:9/v1", "--temperature", "0"),
            "the temperature is that of the agent's requests",
        ),
        ((*EVAL, "--compare", "nowhere"), "no model 'nowhere'"),
        ((*TRAIN, "--set", "rollout.batch=12"), "not a multiple of rollout.group_size"),
        ((*TRAIN, "--tasks", "nope.jsonl", "--set", "eval.every=2"), "no such file of tasks"),
        ((*TRAIN, "--set", "rolout.batch=16"), "did you mean 'rollout.batch'?"),
        ((*TRAIN, "--set", "trainer.zero3=8"), "known in trainer: name, learning_rate"),
        ((*TRAIN, "--set", "trainer.rank=8"), "did you mean 'trainer.ranks'?"),
        (
            (*TRAIN, "--set", "batch=8"),
            "did you mean 'rollout.batch' or 'sft.batch' or 'finetune.batch'?",
        ),
        ((*TRAIN, "--set", "lora.dim=8"), "known sections: algorithm, cluster, curriculum, engine"),
        ((*TRAIN, "--tasks", "a.jsonl", "--tasks", "b.jsonl"), "into one file"),
        ((*TRAIN, "--set", "mixture=[{tasks='a', wieght=2}]"), "did you mean 'mixture.0.weight'?"),
        (
            (*TRAIN, "--set", 'mixture=[{tasks="a", size=2}]'),
            "known in mixture.0: tasks, eval_tasks",
        ),
        ((*TRAIN, "--set", "tasks=b/gone.jsonl"), "begins at the current directory, also one in a"),
        (("eval", "agent.py", "--model", "tiny", "--model", "smollm2"), "--model is given 2 times"),
        ((*TRAIN, "--set", "rollout.bach=16"), "did you mean 'rollout.batch'?"),
        ((*TRAIN, "--set", "training.learning_rate=1"), "mean 'trainer.learning_rate'?"),
        ((*TRAIN, "--set", "rollout.stale=wiat"), "rollout.stale = 'wiat'"),
        ((*TRAIN, "--set", "engine.device=gpu"), "choose auto, cpu, cuda or cuda:INDEX"),
        ((*TRAIN, "--set", "cluster.listen_port=70000"), "less than or equal to 65535"),
        ((*TRAIN, "--set", "rollout..batch=8"), "write section.key"),
        ((*TRAIN, "--set", "rewards=3"), "that is a section, [rewards]"),
        ((*TRAIN, "--reward", "exact_mach"), "did you mean 'exact_match'?"),
        ((*TRAIN, "--plugin", "nowhere.py"), "no such file"),
        (
            ("train", "a.py", "--resume", "runs/one", "--seed", "3", "--dry-run"),
            "leave out AGENT, --seed; beside it may be only --steps, --set, --json, --dry-run",
        ),
        (("sft", "a.jsonl", "--resume", "runs/one", "--dry-run"), "leave out DATA, --dry-run; "),
        (("serve", "--resume", "runs/one", "--config", "a.toml"), "leave out --config, use --set"),
        ((*TRAIN, "--plugin", "broken.py"), "line 2: ZeroDivisionError"),
        ((*TRAIN, "--reward", "my.judge"), "unknown reward 'my.judge'"),
        ((*TRAIN, "--reward", "my.ranking"), "one that a file of yours registers needs --plugin"),
        (
            (*TRAIN, "--plugin", "judge.py", "--set", 'reward."my.judge".stict=true'),
            "did you mean 'strict'?",
        ),
        (("serve", "--model", "tinny"), "did you mean 'tiny'?"),
        (("serve", "--port", "70000"), "less than or equal to 65535"),
        (("doctor", "--port", "70000"), "is not in the range"),
        (("init", "agent", "class"), "makes no Python name"),
        (("init", "agent", "random"), "would hide the module 'random'"),
        (("init", "plugin", "areal-sdk"), "would hide the module 'areal_sdk'"),
        (("init", "agent", "agent"), "agent.py exists"),
        (("inspect", "."), "is not a run directory"),
    ],
)
@pytest.mark.usefixtures("directory")
def test_what_is_asked_for_wrongly_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert exit_code(arguments) == 2  # the command in this process: a hundred seconds less
    assert told in only_line(capfd.readouterr().err)


@pytest.mark.usefixtures("directory")
def test_the_command_itself_exits_with_2_and_no_traceback() -> None:
    done = run("eval", "two.py")
    assert done.returncode == 2
    assert "pick one, as in two.py::Greeter" in only_line(done.stderr)


@pytest.mark.usefixtures("directory")
def test_serving_on_a_taken_port_names_it_and_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--model", "tiny", "--port", str(port), *SCRIPTED_ENGINE)
    assert done.returncode == 2
    told = only_line(done.stderr)
    assert f"cannot listen on 127.0.0.1:{port}" in told
    assert "choose another port" in told


@pytest.mark.usefixtures("directory")
def test_a_plugin_file_brings_a_reward_with_a_dotted_name() -> None:
    done = run(*TRAIN, "--plugin", "judge.py", "--reward", "my.judge")
    assert done.returncode == 0, done.stderr
    settings = tomllib.loads(done.stdout)
    assert settings["plugins"] == ["judge.py"]
    assert settings["reward"] == {"my.judge": {"weight": 1.0}}
    assert done.stderr.startswith("ok: ")


@pytest.mark.usefixtures("directory")
def test_a_setting_that_changes_nothing_is_said_and_the_run_goes_on() -> None:
    done = run(*TRAIN, "--set", "sft.batch=4")
    assert done.returncode == 0, done.stderr
    told, ok = done.stderr.splitlines()
    assert told == "sft.batch = 4 changes nothing: there is no warm-up without sft.steps"
    assert ok.startswith("ok: ")


@pytest.mark.usefixtures("directory")
def test_an_endpoint_that_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    Path("calls.py").write_text(CALLS, encoding="utf-8")
    with socket.socket() as unheard:  # bound, and nobody listens
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/v1"
        assert exit_code(("eval", "calls.py", "--model", "theirs", "--base-url", url)) == 1
    told = capfd.readouterr().err
    assert f"first error: infrastructure: nobody answers at {url}: agent Caller: APIConn" in told


@pytest.mark.usefixtures("directory")
def test_an_evaluation_that_could_score_nothing_fails_and_says_why() -> None:
    done = run(*EVAL, "--num-tasks", "1", "--set", "engine.max_context=8", *SCRIPTED_ENGINE)
    assert done.returncode == 1, done.stdout
    assert "maximum context length is 8 tokens" in done.stderr
    assert "Traceback" not in done.stderr
