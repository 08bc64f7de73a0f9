"""The file of callers' keys: what it holds, what servers take from it, and what is wrong with it."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.accounts.accounts import Accounts, User
from areal_sdk.gateway.accounts.key_log import (
    FollowedKeys,
    make_key,
    read_lines,
    revoke_keys,
    valid_keys,
)
from areal_sdk.gateway.processes.usage import UsageFile

ADMIN_KEY = "sk-admin-0123456789abcdef"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def test_the_file_has_who_did_what_and_no_key(file: Path) -> None:
    key = make_key(file, "alice/laptop")
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    revoke_keys(file, "alice/laptop")
    made, revoked = map(json.loads, file.read_text().splitlines())
    assert (made["user"], made["key"]) == (revoked["user"], revoked["key"]) == ("alice", "laptop")
    assert made["by"] == revoked["by"]
    assert made["at"].endswith("+00:00")


def test_a_key_counts_and_counts_no_more_without_a_restart(file: Path) -> None:
    first = make_key(file, "alice/laptop")
    accounts = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    second, bobs = make_key(file, "alice/ci"), make_key(file, "bob/laptop")
    alice = accounts.by_key(first)
    assert alice is not None
    assert alice is accounts.by_key(second) is accounts.by_name("alice")
    holder = accounts.find(second)
    assert holder is not None
    assert (holder.account.name, holder.key) == ("alice", "ci")
    revoke_keys(file, "alice/laptop")
    assert accounts.by_key(first) is None
    assert accounts.by_key(second) is alice
    assert revoke_keys(file, "alice") == ["alice/ci"]
    assert accounts.by_key(second) is None
    assert accounts.by_key(bobs) is accounts.by_name("bob")
    again = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    assert [again.by_key(key) is None for key in (first, second, bobs)] == [True, True, False]


def test_a_user_of_the_users_file_has_its_quota_with_each_key(file: Path) -> None:
    file.touch()
    users = [User("alice", quota=Quota(max_running=3))]
    accounts = Accounts(
        users, admin_key=ADMIN_KEY, quota=Quota(max_running=1), keys=FollowedKeys(file)
    )
    for name, most in (("alice/laptop", 3), ("bob/laptop", 1)):
        account = accounts.by_key(make_key(file, name))
        assert account is not None
        assert account.quota.max_running == most


def test_every_change_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_key(file, "alice/old")
    accounts = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    make_key(file, "alice/laptop")
    revoke_keys(file, "alice/old")
    for _ in range(3):
        accounts.by_key("sk-nobody")
    told = [record.getMessage().partition(" by ")[0] for record in caplog.records]
    assert told == ["key alice/laptop was made", "key alice/old was revoked"]


def test_half_a_line_waits_for_its_other_half(file: Path) -> None:
    key = make_key(file, "alice/laptop")
    whole = file.read_bytes()
    file.write_bytes(b"")
    accounts = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    for part in (whole[:40], whole[40:]):
        assert accounts.by_key(key) is None
        with file.open("ab") as end:
            end.write(part)
    assert accounts.by_key(key) is not None


def test_half_a_line_that_a_crash_left_harms_no_later_key(file: Path) -> None:
    first = make_key(file, "alice/laptop")
    accounts = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    with file.open("ab") as end:
        end.write(b'{"at":"2026')
    assert accounts.by_key(first) is not None
    second = make_key(file, "alice/ci")
    assert [line.name for line in read_lines(file)] == ["alice/laptop", "alice/ci"]
    assert accounts.by_key(first) is accounts.by_key(second) is not None
    assert revoke_keys(file, "alice") == ["alice/laptop", "alice/ci"]


@pytest.mark.parametrize("harm", ["cut", "gone", "changed"])
def test_a_file_that_was_harmed_revokes_nothing_and_is_named(
    file: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    key, other = make_key(file, "alice/laptop"), make_key(file, "bob/laptop")
    accounts = Accounts(admin_key=ADMIN_KEY, keys=FollowedKeys(file))
    if harm == "cut":
        os.truncate(file, 10)
    elif harm == "gone":
        file.unlink()
    else:
        with file.open("a") as end:
            end.write('{"user": "alice"}\n')
        revoke_keys_despite_the_line(file)
    assert accounts.by_key(key) is not None
    assert (accounts.by_key(other) is None) == (harm == "changed"), "good lines still count"
    assert [str(file) in record.getMessage() for record in caplog.records].count(True) >= 1


def revoke_keys_despite_the_line(file: Path) -> None:
    line = {"at": "now", "by": "root", "user": "bob", "key": "laptop"}
    with file.open("a") as end:
        end.write(json.dumps(line) + "\n")


def test_what_names_no_key_is_refused_with_the_cure(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"areal-sdk keys make .* makes the first key"):
        FollowedKeys(file)
    with pytest.raises(ConfigError, match="write USER/KEY"):
        make_key(file, "alice")
    with pytest.raises(ConfigError, match="AREAL_SDK_ADMIN_KEY"):
        make_key(file, "admin/laptop")
    make_key(file, "alice/laptop")
    with pytest.raises(ConfigError, match="another name"):
        make_key(file, "alice/laptop")
    with pytest.raises(ConfigError, match="valid: alice/laptop"):
        revoke_keys(file, "alice/desktop")
    revoke_keys(file, "alice")
    with pytest.raises(ConfigError, match="another name"):
        make_key(file, "alice/laptop")
    assert not valid_keys(read_lines(file))
    file.write_text("key\n")
    with pytest.raises(ConfigError, match=":1 is no line"):
        FollowedKeys(file)


def test_processes_agree_on_the_rows_of_accounts_in_any_order(tmp_path: Path) -> None:
    names = [f"user-{number}" for number in range(300)]
    here, there = (UsageFile(tmp_path / "usage", size=2) for _ in range(2))
    with closing(here), closing(there):
        rows = {name: here.account(name) for name in names}
        assert rows == {name: there.account(name) for name in reversed(names)}
    assert len({*rows.values()}) == len(names)
