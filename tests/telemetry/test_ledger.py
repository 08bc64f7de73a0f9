"""The books balance whatever happens, and an impossible entry stops the run."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.errors import LedgerError
from areal_sdk.telemetry.ledger import DropReason, Ledger

OPERATION = st.tuples(
    st.sampled_from(["start", "buffer", "train", "drop_running", "drop_buffered", "restart"]),
    st.integers(0, 5),
    st.sampled_from(list(DropReason)),
)


def apply(books: Ledger, operation: str, count: int, reason: DropReason) -> Ledger:
    match operation:
        case "start":
            books.start(count)
        case "buffer":
            books.buffer(count)
        case "train":
            books.train(count)
        case "drop_running":
            books.drop(reason, count)
        case "drop_buffered":
            books.drop(reason, count, buffered=True)
        case _:
            return Ledger.restore(orjson.loads(orjson.dumps(books.snapshot())))
    return books


@given(st.lists(OPERATION, max_size=40))
def test_the_books_balance_after_every_operation(
    operations: list[tuple[str, int, DropReason]],
) -> None:
    books = Ledger()
    for operation, count, reason in operations:
        before = books.snapshot()
        try:
            books = apply(books, operation, count, reason)
        except LedgerError:
            assert books.snapshot() == before  # a refused entry changes nothing
        ended = books.trained + sum(books.dropped.values())
        assert books.started == books.running + books.buffered + ended
        assert min(books.running, books.buffered, books.trained) >= 0
        assert books.kept == books.started - books.running - sum(books.dropped.values())


@given(st.lists(OPERATION, max_size=40))
def test_training_never_lowers_what_is_kept(operations: list[tuple[str, int, DropReason]]) -> None:
    books = Ledger()
    for operation, count, reason in operations:
        kept = books.kept
        try:
            books = apply(books, operation, count, reason)
        except LedgerError:
            continue
        if operation == "train":
            assert books.kept == kept


@pytest.mark.parametrize("operation", ["buffer", "train", "drop_running", "drop_buffered"])
def test_an_episode_that_is_not_there_cannot_be_moved(operation: str) -> None:
    with pytest.raises(LedgerError, match="with 0 "):
        apply(Ledger(), operation, 1, DropReason.STALE)


def test_what_ran_or_waited_at_a_restart_is_lost_and_counted() -> None:
    books = Ledger()
    books.start(10)
    books.buffer(6)
    books.train(4)
    books.drop(DropReason.STALE, buffered=True)
    restored = Ledger.restore(books.snapshot())
    assert (restored.started, restored.running, restored.buffered) == (10, 0, 0)
    assert restored.dropped == {DropReason.STALE: 1, DropReason.LOST_AT_RESTART: 5}
    assert restored.kept == restored.trained == 4


def test_forged_books_are_refused() -> None:
    forged = {"started": 5, "running": 1, "buffered": 1, "trained": 1, "dropped": {}}
    with pytest.raises(LedgerError, match="do not balance"):
        Ledger.restore(forged)
    with pytest.raises(LedgerError, match="not a ledger snapshot"):
        Ledger.restore({"started": 5})
    with pytest.raises(LedgerError, match="cannot be negative"):
        Ledger().start(-1)
