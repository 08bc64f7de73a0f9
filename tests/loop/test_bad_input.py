"""A user's mistake is one line that names the cure, before anything heavy starts."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop import check
from areal_sdk.models import resolve_model
from tests.loop.runs import AGENT, SCRIPTED, finish, refused, start_training, training

TWO_AGENTS = """
from areal_sdk import Agent, Task

class First(Agent):
    async def run(self, task, context):
        return 1.0

class Second(First):
    pass

def tasks(split):
    yield Task("one")
"""


def only_line(told: str) -> str:
    lines = told.strip().splitlines()
    assert len(lines) == 1, told
    return lines[0]


def train(*arguments: str) -> tuple[str, ...]:
    model = () if "--model" in arguments else ("--model", "tiny")
    return ("train", str(AGENT), *model, "--dry-run", *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "nowhere.py"), "nowhere.py"),
        (("train",), "which agent?"),
        (("train", f"{AGENT}::Consonants"), "no 'Consonants' in"),
        (train("--model", "smolm2"), "did you mean 'smollm2'?"),
        (train("--reward", "exact_mach"), "did you mean 'exact_match'?"),
        (train("--tasks", "nowhere.jsonl"), "nowhere.jsonl"),
        (train("--set", "rollout.bacth=8"), "did you mean 'rollout.batch'?"),
        (train("--set", "trainer.learning_rate=-1"), "greater than 0"),
        (train("--set", "rollout.batch=30"), "not a multiple of rollout.group_size = 8: try 24"),
        (
            train("--set", "run.deterministic=true", "--set", "rollout.max_staleness=1"),
            "remove one",
        ),
        (train("--set", "algorithm.name=grppo"), "did you mean 'grpo'?"),
        (train("--config", "nowhere.toml"), "no such config file: nowhere.toml"),
        (train("--set", "sft.steps=3"), "needs demonstrations"),
        (train("--engine", "slgang"), "did you mean 'sglang'?"),
        (("train", "--resume", "nowhere"), "not a run directory"),
    ],
)
def test_a_wrong_argument_is_one_line_with_the_cure(arguments: tuple[str, ...], told: str) -> None:
    assert told in only_line(refused(*arguments))


def test_the_command_itself_says_so_on_stderr_and_exits_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "areal_sdk", *train("--set", "rollout.bacth=8")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    assert "did you mean 'rollout.batch'?" in only_line(done.stderr)


def test_a_file_with_two_agents_asks_which(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(TWO_AGENTS)
    told = refused("train", str(path), "--dry-run")
    assert f"pick one, as in {path}::First" in only_line(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"question": "a"}\n{"question": oops}\n', "line 2: not valid JSON"),
        ("", "holds no tasks"),
        ('{"id": "a"}\n{"id": "a"}\n', "'a' was used on line 1"),
    ],
)
def test_a_malformed_task_file_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    assert told in only_line(refused(*train("--tasks", str(path))))


def test_a_port_in_use_is_named_with_the_cure(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        output = refused(*training(tmp_path, *SCRIPTED, gateway__port=port))
    assert f"cannot listen on 127.0.0.1:{port}" in output
    assert "choose another port" in output
    assert not any(tmp_path.iterdir())


def test_a_prompt_longer_than_the_context_ends_the_run_and_says_so(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    output = finish(start_training(tmp_path, *parts, engine__max_context=16), code=1)
    assert "episodes in a row gave no group to train" in output
    assert "context" in output


def without_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    path = model / "tokenizer_config.json"
    words = json.loads(path.read_text())
    words.pop("chat_template", None)
    path.write_text(json.dumps(words))


def without_safetensors(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def without_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def configured(model: Path, **fields: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def broken(directory: Path, breaks: Callable[[Path], None]) -> Path:
    """A copy of the tiny model in which something is wrong."""
    model = Path(shutil.copytree(resolve_model("tiny"), directory / "model"))
    breaks(model)
    return model


WRONG_MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "without a chat template": (without_template, "has no chat template"),
    "without safetensors": (without_safetensors, "no .safetensors file"),
    "without a tokenizer": (without_tokenizer, "has no tokenizer.json"),
    "of a family that is not trained": (
        lambda model: configured(model, model_type="gpt_oss"),
        "the trainer does not train 'gpt_oss' models, whose attention leaves a share",
    ),
    "that only SGLang serves": (
        lambda model: configured(model, model_type="granite"),
        "not model_type 'granite': serve this model with SGLang",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_MODELS)
def test_a_dry_run_refuses_a_model_that_cannot_be_trained(wrong: str, tmp_path: Path) -> None:
    breaks, told = WRONG_MODELS[wrong]
    model = broken(tmp_path, breaks)
    with pytest.raises(ConfigError, match=re.escape(told)):
        check(parse_config({"agent": str(AGENT), "model": str(model)}))


@pytest.mark.parametrize("engine", ["local", "http://127.0.0.1:9"])
def test_a_dry_run_without_torch_says_what_to_install(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r'pip install "areal-sdk\[train\]"'):
        check(parse_config({"agent": str(AGENT), "model": "tiny", "engine": {"name": engine}}))


def test_a_dry_run_without_sglang_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AREAL_SDK_SGLANG_ENV", str(tmp_path))
    with pytest.raises(ConfigError, match="areal-sdk engine install sglang"):
        check(parse_config({"agent": str(AGENT), "model": "tiny", "engine": {"name": "sglang"}}))


@pytest.mark.parametrize(
    "command",
    [("train", str(AGENT)), ("eval", str(AGENT)), ("serve", "--record", "--port", "0")],
    ids=lambda command: command[0],
)
def test_a_command_with_a_model_that_no_engine_of_ours_runs_is_refused_and_leaves_nothing(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = broken(tmp_path, lambda model: configured(model, model_type="granite"))
    monkeypatch.chdir(tmp_path)
    assert "serve this model with SGLang" in refused(*command, "--model", str(model))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


NO_CLUSTER = """
from areal_sdk import ConfigError, hookimpl

async def open_cluster(setup, *, answers: bool = False):
    if not answers:
        raise ConfigError("no cluster answers: start one")
    return Cluster()

class Cluster:
    async def aclose(self): ...

@hookimpl
def register_launchers(register):
    register("cloud", open_cluster)
"""


def test_a_dry_run_asks_the_cluster_whether_it_answers(tmp_path: Path) -> None:
    plugin = tmp_path / "cloud.py"
    plugin.write_text(NO_CLUSTER)
    asked = train("--launcher", "cloud", "--plugin", str(plugin))
    assert "no cluster answers: start one" in only_line(refused(*asked))
    check(
        parse_config(
            {
                "agent": str(AGENT),
                "model": "tiny",
                "plugins": [str(plugin)],
                "cluster": {"launcher": "cloud", "cloud": {"answers": True}},
            }
        )
    )


def test_a_dry_run_finds_that_there_is_no_ray_cluster() -> None:
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        told = refused(*train("--launcher", "ray", "--set", f"cluster.address={address}"))
    assert "no Ray cluster answers" in told
    assert "start one with `ray start --head`" in told
