"""Dotted keys: names with dots of their own stand in quotes, as in TOML."""

from pathlib import Path

import pytest

from areal_sdk.command import given_settings
from areal_sdk.config import load_config, parse_config
from areal_sdk.config.keys import join_key, split_key
from areal_sdk.config.tables import as_written
from areal_sdk.errors import ConfigError
from areal_sdk.plugins import load_plugins
from areal_sdk.telemetry import RunDir


@pytest.mark.parametrize(
    "parts", [("run", "steps"), ("reward", "pkg.name", "weight"), ("env", "a b", "x"), ("tasks",)]
)
def test_a_joined_key_splits_into_its_parts(parts: tuple[str, ...]) -> None:
    assert split_key(join_key(*parts)) == list(parts)


@pytest.mark.parametrize("key", ["", ".", "a..b", ".a", "a.", 'a."b', 'a."b"c', "a b.c"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a setting|write section\.key"):
        load_config(settings=[f"{key}=1"])


def test_a_reward_with_a_dotted_name_is_named_by_flag_setting_and_table(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[reward."pkg.judge"]\nstrict = true\n')
    config = load_config(
        file=file,
        settings=['reward."pkg.judge".model=small'],
        overrides=given_settings(None, ("pkg.judge=0.5",), (), {}),
    )
    assert config.rewards == {"pkg.judge": 0.5}
    assert config.options["reward.pkg.judge"] == {"strict": True, "model": "small"}


def test_a_run_directory_gives_dotted_names_back(tmp_path: Path) -> None:
    config = load_config(settings=['reward."pkg.judge".model=small', 'env."a.b".size=3'])
    run_dir = RunDir.create(tmp_path, "run")
    run_dir.write_config(config.model_dump(mode="json", exclude_none=True))
    again = load_config(file=run_dir.config)
    assert again == config


def test_a_lost_secret_of_a_dotted_name_is_asked_for_as_the_shell_wants_it(tmp_path: Path) -> None:
    config = load_config(settings=['reward."pkg.judge".api_key=sk-1'])
    run_dir = RunDir.create(tmp_path, "run")
    run_dir.write_config(config.model_dump(mode="json", exclude_none=True))
    with pytest.raises(ConfigError) as caught:
        load_config(file=run_dir.config)
    assert """--set 'reward."pkg.judge".api_key=...'""" in str(caught.value)


def test_a_dotted_name_without_quotes_is_told_to_quote_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from areal_sdk import hookimpl\n\n\ndef judge(episode):\n    return 1.0\n\n\n"
        '@hookimpl\ndef register_rewards(register):\n    register("pkg.judge", judge)\n'
    )
    plugins = load_plugins(files=[file])
    (name,) = load_config(settings=["reward.pkg.judge.x=1"]).rewards
    with pytest.raises(ConfigError, match=r'stands in quotes in a key: \."pkg\.judge"\.'):
        plugins.rewards.get(name)


@pytest.mark.parametrize(
    "settings",
    [
        ["reward.exact_match.weight=0.5"],
        ['reward."my.judge".strict=true', "agent=a.py", "agent.style=terse"],
        ["env=maze", "env.maze.size=5", "env.other.size=3"],
        ["engine.name=sglang", "engine.sglang.tp=2", "engine.max_slots=8"],
        ["agent.style=terse", "env.maze.size=5"],
    ],
)
def test_settings_as_people_write_them_are_the_same_settings(settings: list[str]) -> None:
    config = load_config(settings=settings)
    written = as_written(config.model_dump(mode="json", exclude_none=True))
    again = parse_config(written)
    assert {name: table for name, table in again.options.items() if table} == {
        name: table for name, table in config.options.items() if table
    }
    assert again.model_copy(update={"options": {}}) == config.model_copy(update={"options": {}})


@pytest.mark.parametrize("name", ["2026-01-01", "07:30:00", "2026-01-01T07:30:00"])
def test_a_name_that_looks_like_a_date_is_a_name(name: str) -> None:
    assert load_config(settings=[f"run.name={name}"]).run.name == name


@pytest.mark.parametrize("name", ["a/b", "..", "../a", "/a", "", "."])
def test_a_run_is_named_within_its_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has no slash"):
        load_config(settings=[f"run.name='{name}'"])
