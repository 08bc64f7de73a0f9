"""The gateway processes of one server agree on owners, quotas and lost sessions."""

from contextlib import closing
from pathlib import Path

import pytest

from areal_sdk.config import Quota
from areal_sdk.gateway import ApiError
from areal_sdk.gateway.accounts.accounts import Account
from areal_sdk.gateway.processes.hop import AnswerReader
from areal_sdk.gateway.processes.shard import Claims, Shard
from areal_sdk.gateway.processes.usage import SharedUsage, UsageFile


def test_all_processes_agree_on_the_owner_and_share_the_sessions() -> None:
    shards = [Shard(number, 4, users=["admin", "alice"]) for number in range(4)]
    names = [f"alice/{name}" for name in range(400)]
    owners = [shards[0].of_session(name) for name in names]
    for shard in shards[1:]:
        assert [shard.of_session(name) for name in names] == owners
    assert all(60 < owners.count(number) < 140 for number in range(4)), "names of digits, too"


def test_siblings_of_a_group_have_one_owner() -> None:
    shard = Shard(0, 4, users=["alice"])
    assert len({shard.of_session(f"chess/{sibling}") for sibling in range(16)}) == 1
    assert shard.of_group("chess") == shard.of_session("chess/3")


@pytest.mark.parametrize(
    ("name", "owner"),
    [("sk-p2-abc_-", 2), ("sk-p4-abc", None), ("sk-abc", None), ("sk-p2-abc/name", None)],
)
def test_a_key_that_was_made_up_tells_its_owner(name: str, owner: int | None) -> None:
    assert Shard(0, 4).of_key(name) == owner


def test_one_process_marks_nothing_and_owns_all() -> None:
    shard = Shard()
    assert shard.mark == ""
    assert shard.of_session("alice/1") == shard.number


def accounts(path: Path, quota: Quota) -> tuple[UsageFile, list[Account]]:
    """One account as two processes see it."""
    file = UsageFile(path, size=2)
    usages = [SharedUsage(file, file.account("alice"), quota, shard=shard) for shard in range(2)]
    return file, [Account("alice", quota, usage=usage) for usage in usages]


def test_processes_together_keep_to_a_quota(tmp_path: Path) -> None:
    quota = Quota(requests_per_minute=3, max_running=2, max_sessions=2)
    file, (here, there) = accounts(tmp_path / "usage", quota)
    with closing(file):
        refused = pytest.raises(ApiError, match="2 requests at the same time")
        with here.request(), there.request(), refused, here.request():
            pass
        with there.request():
            pass
        with pytest.raises(ApiError, match="3 requests a minute"), here.request():
            pass
        here.open_sessions()
        there.open_sessions()
        with pytest.raises(ApiError, match="2 open sessions"):
            there.open_sessions()
        here.close_session()
        there.open_sessions()


def test_what_a_dead_process_held_is_free_again(tmp_path: Path) -> None:
    file, (here, there) = accounts(tmp_path / "usage", Quota(max_sessions=1, tokens_per_minute=60))
    with closing(file):
        here.open_sessions()
        here.spend_tokens(120)
        file.forget(0)
        there.open_sessions()
        with pytest.raises(ApiError, match="60 sampled tokens a minute"), there.request():
            pass


def test_a_replacement_knows_the_sessions_of_its_predecessor(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    with closing(Claims(path, secret=b"s")) as first:
        first.add("alice/a", "sk-p0-key", "a~p0-00")
        assert not first.is_lost("alice/a"), "it is open"
    with closing(Claims(path, secret=b"s")) as second:
        assert second.is_lost("alice/a")
        assert second.is_lost("sk-p0-key")
        assert not second.is_lost("alice/b")
    assert b"alice" not in path.read_bytes()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\r\n0\r\n2\r\n\r\n\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize("sent", [WHOLE, CHUNKED, EMPTY])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_ends_with_its_last_byte(sent: bytes, size: int) -> None:
    answer = AnswerReader()
    for at in range(0, len(sent), size):
        assert not answer.is_over
        answer.feed(sent[at : at + size])
    assert answer.is_over
    assert not answer.closes


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    answer = AnswerReader()
    answer.feed(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert not answer.is_over
    assert answer.closes
    assert answer.ends_with_connection
