"""The users of `areal-sdk serve --users`: keys, quotas, and what is wrong with the file."""

from pathlib import Path

import pytest

from areal_sdk.config import Quota, parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.loop.services.gateway import read_users

KEY = "sk-alice-0123456789abcdef"


def users_of(path: Path, text: str, **serve: object) -> list[User]:
    file = path / "users.toml"
    file.write_text(text)
    return read_users(parse_config({"serve": {"users": str(file), **serve}}))


def test_a_user_has_the_servers_quotas_unless_given_others(tmp_path: Path) -> None:
    text = f'[alice]\napi_key = "{KEY}"\n[bob]\napi_key = "{KEY}2"\nmax_running = 3\n'
    users = read_users(parse_config({}))
    assert users == []
    alice, bob = users_of(tmp_path, text, requests_per_minute=60, max_sessions=9)
    assert alice.quota == Quota(requests_per_minute=60, max_sessions=9)
    assert bob.quota == Quota(requests_per_minute=60, max_running=3, max_sessions=9)


BAD = {
    "nobody": ("", "no users"),
    "no table": ("alice = 1", r"\[alice\]"),
    "no key": (f'[alice]\napi-key = "{KEY}"', r"\[alice\] api-key"),
    "no key at all": ("[alice]\nmax_running = 3", r"\[alice\] has no api_key"),
    "an unknown quota": (f'[alice]\napi_key = "{KEY}"\nper_minute = 1', "per_minute"),
    "no TOML": ("[alice", "not valid TOML"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_and_no_key_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        users_of(tmp_path, text)
    assert KEY not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        read_users(parse_config({"serve": {"users": str(tmp_path / "missing.toml")}}))


def test_learning_implies_what_live_callers_need() -> None:
    config = parse_config({"serve": {"learn": True}, "rollout": {"batch": 5}})
    assert (config.rollout.group_size, config.algorithm.name) == (1, "running_baseline")
    assert config.rollout.stale == "drop"
    assert config.run.is_endless
    grouped = parse_config({"serve": {"learn": True}, "rollout": {"group_size": 4}})
    assert grouped.algorithm.name == "grpo"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"serve": {"learn": True, "upstream": "http://x/v1"}}, "gives only text"),
        ({"serve": {"learn": True}, "run": {"deterministic": True}}, "callers decide"),
    ],
)
def test_what_cannot_be_learnt_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(values)
