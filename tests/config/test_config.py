"""Settings that would be lost, ignored or misread are refused."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import areal_sdk
from areal_sdk.command import given_settings
from areal_sdk.config import REMOVED, Config, load_config, parse_config, with_absolute_paths
from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.parts import check_engine
from areal_sdk.models import BUILT_IN
from areal_sdk.plugins import load_plugins
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry import run_dir as rundir
from areal_sdk.testing import ScriptedEngine
from areal_sdk_sglang.settings import SGLangSection


def stored(directory: Path, config: Config) -> Path:
    run_dir = RunDir.create(directory, "run")
    run_dir.write_config(config.model_dump(mode="json", exclude_none=True))
    return run_dir.config


def test_a_resumed_run_never_takes_the_placeholder_of_its_admin_key_for_the_key(
    tmp_path: Path,
) -> None:
    path = stored(tmp_path, parse_config({"gateway": {"admin_key": "sk-mine"}}))
    assert "sk-mine" not in path.read_text(encoding="utf-8")
    assert load_config(file=path).gateway.admin_key is None


def test_any_other_lost_secret_is_asked_for_and_its_neighbours_are_kept(tmp_path: Path) -> None:
    options = {"reward": {"judge": {"weight": 2.0, "api_key": "sk-1", "model": "m"}}}
    path = stored(tmp_path, parse_config(options))
    with pytest.raises(ConfigError, match=r"--set reward\.judge\.api_key=\.\.\."):
        load_config(file=path)
    again = load_config(file=path, settings=["reward.judge.api_key=sk-2"])
    assert again.options["reward.judge"] == {"api_key": "sk-2", "model": "m"}
    assert again.rewards == {"judge": 2.0}


@pytest.mark.parametrize("setting", ["rewards.judge=3", "reward.judge.weight=3"])
@pytest.mark.parametrize("text", ["[reward.judge]\nweight = 2.0", "[rewards]\njudge = 2.0"])
def test_a_set_weight_replaces_that_of_the_file_however_both_are_written(
    tmp_path: Path, text: str, setting: str
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert load_config(file=file, settings=[setting]).rewards == {"judge": 3.0}


def test_run_directories_and_settings_agree_on_the_placeholder() -> None:
    assert rundir.REMOVED == REMOVED


@pytest.mark.parametrize("setting", ["run=3", "reward=3", "reward.x=3", "rollout=false"])
def test_a_section_that_is_no_section_is_a_configuration_error(setting: str) -> None:
    with pytest.raises(ConfigError):
        load_config(settings=[setting])


def test_a_config_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file=tmp_path)


def test_stopping_at_a_success_that_is_never_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set eval\.every"):
        parse_config({"eval": {"stop_at_success": 0.9}})


def test_a_schedule_without_a_last_step_is_refused() -> None:
    live = {"serve": {"learn": True}, "trainer": {"schedule": "cosine"}}
    with pytest.raises(ConfigError, match=r'"cosine" falls until the last step.*set run\.steps'):
        parse_config(live)
    assert parse_config({**live, "run": {"steps": 100}}).trainer.schedule == "cosine"


def test_a_weight_that_is_no_number_names_the_flag() -> None:
    import click

    with pytest.raises(click.BadParameter, match="NAME=WEIGHT"):
        given_settings(None, ("exact_match=much",), (), {})


class Theirs:
    """A plugin that brings an engine."""

    @areal_sdk.hookimpl
    def register_engines(self, register: Callable[[str, object], None]) -> None:
        register("theirs", ScriptedEngine)


def test_engine_settings_that_a_plugins_engine_would_ignore_are_refused() -> None:
    plugins = load_plugins()
    module = ModuleType("theirs")
    module.register_engines = Theirs().register_engines  # type: ignore[attr-defined]
    plugins.register_module(module, "theirs.py")
    with pytest.raises(ConfigError, match=r"engine\.max_slots would be ignored"):
        check_engine(parse_config({"engine": {"name": "theirs", "max_slots": 8}}), plugins)
    check_engine(parse_config({"engine": {"name": "theirs"}}), plugins)


def test_what_a_run_stores_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        "agent.py",
        "plugin.py",
        "tasks.jsonl",
        "held_out.jsonl",
        "sft.jsonl",
        "users.toml",
    ):
        Path(name).write_text("", encoding="utf-8")
    for name in ("model", "earlier", "tiny", "environment", "calculator"):
        Path(name).mkdir()
    settings: dict[str, Any] = {
        "agent": "agent.py::Mine",
        "model": "model",
        "tasks": "tasks.jsonl",
        "eval_tasks": "held_out.jsonl",
        "plugins": ["plugin.py"],
        "init_from": "earlier",
        "sft": {"demonstrations": "sft.jsonl"},
        "serve": {"users": "users.toml"},
        "engine": {"name": "sglang", "sglang": {"environment": "environment"}},
    }
    tables = {"engine.sglang": SGLangSection}
    found = with_absolute_paths(parse_config(settings), built_in=BUILT_IN, tables=tables)
    assert found.agent == f"{tmp_path}/agent.py::Mine"
    assert found.plugins == (f"{tmp_path}/plugin.py",)
    assert found.sft.demonstrations == f"{tmp_path}/sft.jsonl"
    assert found.serve.users == tmp_path / "users.toml"
    assert found.options["engine.sglang"]["environment"] == f"{tmp_path}/environment"
    names = (found.model, found.tasks, found.eval_tasks, found.init_from)
    assert {str(Path(name or "").parent) for name in names} == {str(tmp_path)}


def test_a_path_is_stored_in_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    (tmp_path / "tasks.jsonl").touch()
    config = parse_config({"tasks": "../inner/../tasks.jsonl"})
    found = with_absolute_paths(config, built_in=BUILT_IN, tables={})
    assert found.tasks == f"{tmp_path}/tasks.jsonl"


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "calculator", "model": "tiny", "tasks": "gsm8k"},
        {"agent": "package.module:Agent", "model": "org/name"},
        {"command": "node --fast", "model": "tiny"},
    ],
)
def test_a_name_that_is_no_path_is_stored_as_it_is(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "calculator"):
        Path(name).mkdir()
    Path("node").touch()  # not what a shell would run
    config = parse_config(settings)
    assert with_absolute_paths(config, built_in=BUILT_IN, tables={}) == config


def test_an_adapter_is_one_line_and_has_a_learning_rate_of_its_own() -> None:
    full, lora = Config().trainer, load_config(settings=["trainer.lora.rank=16"]).trainer
    assert lora.lora.rank == 16
    assert lora.first_learning_rate == 10 * full.first_learning_rate
    assert lora.model_copy(update={"lora": full.lora}) == full
    given = load_config(settings=["trainer.learning_rate=1e-5", "trainer.lora.rank=16"])
    assert given.trainer.learning_rate == 1e-5
    none = parse_config({"trainer": {"lora": {"rank": "0"}}})  # a number in quotes is a number
    assert none == Config(), "all weights do not get the rate of an adapter"


def test_an_adapter_s_table_is_the_trainer_s_and_other_tables_are_of_plugins(
    tmp_path: Path,
) -> None:
    config = parse_config({"trainer": {"lora": {"rank": 4, "targets": "q_proj"}, "mine": {"a": 1}}})
    assert config.trainer.lora.targets == ("q_proj",)
    assert config.options == {"trainer.mine": {"a": 1}}
    again = load_config(file=stored(tmp_path, config))
    assert again.trainer == config.trainer


def test_a_value_that_is_none_of_two_forms_names_both() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings=["trainer.learning_rate=fast"])
    assert str(caught.value) == (
        "trainer.learning_rate = 'fast': input should be a valid number, unable to parse string as a "
        "number, or 'auto'"
    )
    with pytest.raises(ConfigError, match="'auto'"):
        load_config(settings=["trainer.learning_rate=-1"])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("trainer.lora=16", r"a table, \[trainer\.lora\]: set trainer\.lora\.rank, for example"),
        ("trainer.lora.rnk=16", r"did you mean 'trainer\.lora\.rank'"),
        ("trainer.lora.rank=-1", r"trainer\.lora\.rank = -1"),
        ("trainer.lora.dropout=0.1", r"dropout changes them: leave it out"),
    ],
)
def test_a_slip_in_an_adapter_s_table_names_the_cure(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(settings=[setting])


def test_ranks_are_not_put_on_one_gpu() -> None:
    assert parse_config({"trainer": {"device": "cuda:1"}}).trainer.device == "cuda:1"
    assert parse_config({"trainer": {"device": "cuda", "ranks": 4}}).trainer.ranks == 4
    with pytest.raises(ConfigError, match="puts all 4 ranks on one GPU"):
        parse_config({"trainer": {"device": "cuda:1", "ranks": 4}})
