"""Whole fine-tuning runs on the tiny model: what they write, how they go on, what they refuse."""

import json
import shutil
import tomllib
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.cli.main import cli
from areal_sdk.config import Config, parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.finetune import Teacher, ask_teacher, check, finetune, resume_finetuning
from areal_sdk.finetune.begun import DATA_FILE
from areal_sdk.finetune.objectives import Order
from areal_sdk.finetune.training import _Steps
from areal_sdk.loop import resume_training, train_config
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.plan.models import find_model, find_served_model
from areal_sdk.loop.progress import Progress
from areal_sdk.models import resolve_model
from areal_sdk.plugins import load_plugins
from areal_sdk.telemetry import RunDir

AGENT = Path(__file__).with_name("echo.py")
WORKFLOW = Path(__file__).parents[2] / "examples" / "agents" / "second_look.py"


def asked(letter: str) -> dict[str, str]:
    return {"role": "user", "content": letter}


def rows(path: Path) -> str:
    lines = [
        {"messages": [asked(letter), {"role": "assistant", "content": 2 * letter}]}
        for letter in "abcdefgh"
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def pairs(path: Path, letters: str = "abcdefgh") -> str:
    lines = [
        {"messages": [asked(letter)], "chosen": 2 * letter, "rejected": "no"} for letter in letters
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def settings(tmp_path: Path, objective: str, data: str, **sections: dict[str, Any]) -> Config:
    given: dict[str, dict[str, Any]] = {
        "run": {"dir": str(tmp_path), "name": "run", "checkpoint_every": 0},
        "trainer": {"learning_rate": 3e-3, "warmup_steps": 0, "precision": "float32"},
        "engine": {"dtype": "float32"},
        "finetune": {"objective": objective, "data": [data], "batch": 4},
    }
    for name, values in sections.items():
        given[name] = {**given.get(name, {}), **values}
    return parse_config({"model": "tiny", **given})


@pytest.mark.long
def test_sft_lowers_the_held_out_loss_and_goes_on(tmp_path: Path) -> None:
    data = rows(tmp_path / "rows.jsonl")
    config = settings(
        tmp_path,
        "sft",
        data,
        finetune={"epochs": 5, "eval_data": [data]},
        eval={"every": 5},
    )
    summary = finetune(config, quiet=True)
    run_dir = RunDir.open(tmp_path / "run")
    assert (summary.ended, summary.steps) == ("steps", 10)  # 5 epochs of 8 rows, 4 a step
    assert summary.held_out["after/loss"] < summary.held_out["before/loss"]
    steps = run_dir.read_steps()
    assert [step["train/num_trained"] for step in steps] == [12] * 10  # two bytes and an end each
    assert [e["name"] for e in run_dir.read_metrics(kind="held_out")] == [
        "before",
        "step-5",
        "step-10",
        "after",
    ]
    assert run_dir.read_config()["run"]["steps"] == 10
    assert run_dir.how_to_resume() == f"areal-sdk sft --resume {run_dir.path}"
    assert find_model(str(run_dir.path)) == run_dir.checkpoints / "final"

    longer = resume_finetuning(run_dir.path, overrides={"run.steps": 12}, quiet=True)
    assert longer.steps == 12
    assert longer.held_out["after/loss"] < summary.held_out["after/loss"]
    assert resume_finetuning(run_dir.path, quiet=True).had_ended
    with pytest.raises(ConfigError, match="a run keeps the data and the objective it began with"):
        resume_finetuning(run_dir.path, overrides={"finetune.batch": 2}, quiet=True)
    with pytest.raises(ConfigError, match="learns from data: go on with areal-sdk sft --resume"):
        resume_training(run_dir.path, overrides={"run.steps": 20}, quiet=True)
    shown = CliRunner().invoke(cli, ["inspect", str(run_dir.path)])
    assert "12 steps" in shown.output
    assert shown.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_an_adapter_learns_from_data_and_goes_on_bit_by_bit(tmp_path: Path, objective: str) -> None:
    write = rows if objective == "sft" else pairs
    data = write(tmp_path / "data.jsonl")
    lora = {"lora": {"rank": 4, "dropout": 0.1}, "learning_rate": 1e-2}
    whole = settings(tmp_path, objective, data, trainer=lora, run={"name": "whole", "steps": 6})
    summary = finetune(whole, quiet=True)
    assert summary.steps == 6
    cut = settings(tmp_path, objective, data, trainer=lora, run={"name": "cut", "steps": 3})
    finetune(cut, quiet=True)
    resume_finetuning(tmp_path / "cut", overrides={"run.steps": 6}, quiet=True)
    losses = [
        [step["train/loss"] for step in RunDir.open(tmp_path / name).read_steps()]
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    final = find_model(str(tmp_path / "cut"))
    assert (final / "adapter" / "adapter_config.json").is_file()
    begun = load_file(resolve_model("tiny") / "model.safetensors")
    ended = load_file(final / "model.safetensors")
    assert {name for name in begun if not begun[name].equal(ended[name])} == {
        name for name in begun if "_proj" in name
    }


@pytest.mark.slow
def test_an_interrupted_run_takes_the_steps_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """The file was turned round meanwhile, and a row came before the others."""
    data = pairs(tmp_path / "pairs.jsonl")
    whole = settings(tmp_path, "dpo", data, run={"name": "whole", "steps": 4})
    finetune(whole, quiet=True)
    cut = settings(tmp_path, "dpo", data, run={"name": "cut", "steps": 2})
    finetune(cut, quiet=True)
    record = (tmp_path / "cut" / DATA_FILE).read_bytes()
    lines = Path(data).read_text(encoding="utf-8").splitlines()
    added = lines[0].replace("aa", "new")
    Path(data).write_text("\n".join([added, *reversed(lines)]), encoding="utf-8")
    resume_finetuning(tmp_path / "cut", overrides={"run.steps": 4}, quiet=True)
    assert (tmp_path / "cut" / DATA_FILE).read_bytes() == record
    losses = [
        [step["train/loss"] for step in RunDir.open(tmp_path / name).read_steps()]
        for name in ("whole", "cut")
    ]
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(0.6931, abs=1e-3)  # nothing is preferred yet: log 2
    assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
def test_a_reward_model_tells_pairs_apart_that_it_never_saw(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        "reward_model",
        pairs(tmp_path / "pairs.jsonl", "abcdef"),
        finetune={"eval_data": [pairs(tmp_path / "unseen.jsonl", "gh")]},
        run={"steps": 8},
    )
    summary = finetune(config, quiet=True)
    assert summary.held_out["before/accuracy"] == 0.5
    assert summary.held_out["after/accuracy"] == 1.0
    served = parse_config({"model": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match="is a reward model, which generates no text"):
        find_served_model(served, plugins=load_plugins())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"finetune": {"data": []}}, "no data: give files or run directories"),
        ({"finetune": {"data": ["nope.jsonl"]}}, "no such data: nope.jsonl"),
        ({"finetune": {"objective": None}}, "finetune.objective is not set"),
        ({"finetune": {"max_tokens": 5}}, "nothing to learn from in .*longer than 5 tokens"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_before_a_run(
    tmp_path: Path, changes: dict[str, dict[str, Any]], problem: str
) -> None:
    config = settings(tmp_path, "sft", rows(tmp_path / "rows.jsonl"), **changes)
    with pytest.raises(ConfigError, match=problem):
        check(config)
    assert not (tmp_path / "run").exists()


def without_local_engine(directory: Path) -> str:
    """A model of a family that the trainer knows and the local engine does not."""
    size = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 2000}
    config = AutoConfig.for_model("gemma2", **size, **heads)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    for path in resolve_model("tiny").iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copyfile(path, directory / path.name)
    return str(directory)


@pytest.mark.parametrize("objective", ["sft", "dpo", "reward_model"])
def test_learning_from_files_needs_no_engine_for_the_model(tmp_path: Path, objective: str) -> None:
    data = (rows if objective == "sft" else pairs)(tmp_path / "data.jsonl")
    config = settings(tmp_path, objective, data)
    config = config.model_copy(update={"model": without_local_engine(tmp_path / "model")})
    check(config)
    if objective != "reward_model":
        with pytest.raises(ConfigError, match="the local engine runs llama"):
            check(config.model_copy(update={"agent": str(AGENT)}))


def test_a_reward_model_plays_no_tasks(tmp_path: Path) -> None:
    config = settings(tmp_path, "reward_model", pairs(tmp_path / "pairs.jsonl"))
    with pytest.raises(ConfigError, match="a reward model plays no tasks"):
        check(config.model_copy(update={"agent": str(AGENT)}))


def test_training_refuses_what_learns_from_data(tmp_path: Path) -> None:
    config = settings(tmp_path, "dpo", "pairs.jsonl")
    with pytest.raises(ConfigError, match="use areal-sdk dpo"):
        train_config(config.model_copy(update={"agent": str(AGENT)}))


def test_a_dry_run_shows_the_steps_that_the_epochs_need(tmp_path: Path) -> None:
    data = rows(tmp_path / "rows.jsonl")
    asked = ["sft", data, "--model", "tiny", "--epochs", "3", "--batch", "5", "--dry-run"]
    shown = CliRunner().invoke(cli, asked)
    assert shown.exit_code == 0, shown.output
    assert "steps = 5" in shown.output  # 24 rows, 5 a step


@pytest.fixture
def of_tiny(tmp_path: Path) -> Path:
    """A finished run that began with the weights of another run."""
    first, run = RunDir(tmp_path / "first"), RunDir(tmp_path / "of-tiny")
    for one, settings in ((first, {"model": "tiny"}), (run, {"init_from": str(first.path)})):
        one.path.mkdir()
        one.write_config(settings)
    shutil.copytree(resolve_model("tiny"), run.checkpoints / "final")
    return run.path


def begun_from(run: Path, command: str, *options: str) -> list[str]:
    given = str(AGENT)
    if command == "sft":
        given = rows(run.parent / "rows.jsonl")
    elif command in ("dpo", "reward-model"):
        given = pairs(run.parent / "pairs.jsonl")
    return [command, given, "--init-from", str(run), *options]


@pytest.mark.parametrize("command", ["train", "sft", "dpo", "reward-model"])
def test_a_run_takes_the_model_of_the_run_it_begins_with(of_tiny: Path, command: str) -> None:
    result = CliRunner().invoke(cli, begun_from(of_tiny, command, "--dry-run"))
    assert tomllib.loads(result.stdout)["model"] == "tiny", result.output
    named = begun_from(of_tiny, command, "--model", "tiny", "--dry-run")
    assert CliRunner().invoke(cli, named).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--dry-run"),
        ("sft", "--dry-run"),
        ("dpo", "--dry-run"),
        ("reward-model", "--dry-run"),
        ("distill", "--teacher", "http://127.0.0.1:9/v1", "--teacher-model", "theirs"),
    ],
)
def test_a_model_that_is_not_that_of_the_weights_is_refused(
    of_tiny: Path, command: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(cli, begun_from(of_tiny, *command, "--model", "smollm2"))
    assert result.exit_code != 0
    told = result.output + str(result.exception)
    assert "has trained 'tiny': leave the model out (--model)" in told


@pytest.mark.parametrize(
    ("flag", "key"), [("--seed", "run.seed"), ("--min-reward", "finetune.min_reward")]
)
def test_a_flag_of_zero_counts_as_given(tmp_path: Path, flag: str, key: str) -> None:
    data = rows(tmp_path / "rows.jsonl")
    words = ["sft", data, "--model", "tiny", "--set", f"{key}=3", flag, "0", "--dry-run"]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    section, _, name = key.partition(".")
    assert tomllib.loads(result.stdout)[section][name] == 0


def test_a_teacher_plays_no_agent_that_takes_tokens(tmp_path: Path) -> None:
    config = parse_config({"agent": str(WORKFLOW), "run": {"dir": str(tmp_path)}})
    with pytest.raises(ConfigError, match="SecondLook is played token by token"):
        ask_teacher(config, Teacher("http://127.0.0.1:9/v1", "some-model"), quiet=True)
    assert not list(tmp_path.iterdir())


def test_every_row_is_taken_once_an_epoch() -> None:
    order = Order(5, 2, seed=1)
    taken = [row for step in range(5) for row in order.batch(step)]
    assert sorted(taken[:5]) == sorted(taken[5:]) == [0, 1, 2, 3, 4]
    assert taken[:5] != taken[5:]
    assert Order(3, 8).batch(0) == Order(3, 3).batch(0)  # a batch is no larger than the data


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_that_is_served(tmp_path: Path) -> None:
    """SFT makes the teacher; the student never sees the teacher's data."""
    from tests.finetune.serving import served

    data = rows(tmp_path / "rows.jsonl")
    config = settings(tmp_path, "sft", data, run={"name": "teacher", "steps": 60})
    measured = finetune(config.model_copy(update={"agent": str(AGENT)}), quiet=True)
    assert measured.before["eval"].success is not None
    assert measured.after["eval"].success is not None
    assert measured.before["eval"].success.value == 0.0
    assert measured.after["eval"].success.value == 1.0
    with served(tmp_path / "teacher") as (url, key):
        command = ["distill", str(AGENT), "--teacher", url, "--teacher-model", "tiny"]
        command += ["--model", "tiny", "--steps", "60", "--learning-rate", "0.003", "--batch", "4"]
        command += ["--set", f"run.dir={tmp_path}", "--set", "engine.dtype=float32", "--json"]
        command += ["--samples", "2", "--set", 'trainer.precision="float32"']
        told = CliRunner().invoke(cli, command, env={"OPENAI_API_KEY": key})
    assert told.exit_code == 0, told.output
    summary = json.loads(told.stdout)
    assert summary["before"]["eval"]["success"] == 0.0
    assert summary["after"]["eval"]["success"] == 1.0


async def test_what_a_run_says_in_its_first_step_is_no_longer_that_it_loads(tmp_path: Path) -> None:
    said: list[str] = []

    class Objective:
        rows = (0, 1)

        async def learn(self, trainer: object, rows: Sequence[int]) -> dict[str, float]:
            said.append(progress._live().note)
            return {"loss": 0.5, "num_updates": 1.0}

    async def learn(step: Awaitable[Any], _: str) -> Any:
        return await step

    checkpoints = SimpleNamespace(is_due=lambda step: False)
    learner = SimpleNamespace(
        state=RunState(), learn=learn, trainer=None, checkpoints=checkpoints, on_settled=None
    )
    plugins = load_plugins()
    config = settings(tmp_path, "sft", "rows.jsonl", run={"steps": 2})
    plan = SimpleNamespace(config=config, objective=Objective(), plugins=plugins)
    directory = RunDir.create(tmp_path, "other")
    progress = Progress(directory, name="sft", total_steps=2, writer=None, notify=plugins.notify)
    async with progress:
        progress.enter("starting: the trainer loads the model")
        await _Steps(cast(Any, plan), cast(Any, learner), progress).run()
    assert said == ["learning: step 1 of 2", "step 1/2, loss 0.500"]
