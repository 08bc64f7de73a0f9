"""The usage of each account's quota by all processes of a server together, in shared memory."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Self

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.accounts.accounts import Usage

MOST_ACCOUNTS = 4096
"""Maximum number of accounts that a server gets while it runs. Rows that nobody uses take no memory."""
_MARK = 4
"""Place in a row of the number that stands for its account's name; 0 in a row that is free."""
_SHARED = 5
"""Numbers of a row that all processes share: for requests and for tokens the amount left, and the time of that amount;
then the mark."""
_COUNTS = 2
"""Numbers of a row that each process has: its running requests and its open sessions."""
_NUMBER = 8


class UsageFile:
    """One row per account. The numbers that processes share are used while the row's lock is held.

    The locks are the kernel's (`fcntl`): a process that dies lets go of them. The clock of the allowances
    is the machine's monotonic clock, which all processes share.
    """

    def __init__(self, path: Path, *, size: int) -> None:
        """`size`: the number of processes."""
        self._width = _SHARED + _COUNTS * size
        # One descriptor for good: to close any descriptor of the file would drop all of its locks.
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.descriptor, MOST_ACCOUNTS * self._width * _NUMBER)
        self._numbers: memoryview[float] = memoryview(mmap.mmap(self.descriptor, 0)).cast("d")

    def account(self, name: str) -> int:
        """The row number of an account, the same in all processes: the first free row from the hash of the name on."""
        digest = blake2b(name.encode(), digest_size=6).digest()
        mark = float(int.from_bytes(digest) + 1)  # a float holds 53 bits exactly
        for step in range(MOST_ACCOUNTS):
            account = (int(mark) + step) % MOST_ACCOUNTS
            at = account * self._width + _MARK
            if self._numbers[at] not in (mark, 0.0):
                continue
            with RowLock(self.descriptor, account):
                if not self._numbers[at]:
                    self._numbers[at] = mark
            if self._numbers[at] == mark:  # else another account was faster
                return account
        raise ConfigError(
            f"a server with serve.processes has at most {MOST_ACCOUNTS} users, and {name!r} is one more: "
            "restart it, which forgets those that are gone"
        )

    def row(self, account: int) -> "memoryview[float]":
        """The numbers of one account."""
        return self._numbers[account * self._width : (account + 1) * self._width]

    def forget(self, shard: int) -> None:
        """Forget the counts of a process that is gone: none of its requests runs, and none of its sessions is open."""
        for account in range(MOST_ACCOUNTS):
            first = account * self._width
            if not self._numbers[first + _MARK]:
                continue
            with RowLock(self.descriptor, account):
                at = first + _SHARED + _COUNTS * shard
                for i in range(_COUNTS):
                    self._numbers[at + i] = 0.0

    def close(self) -> None:
        os.close(self.descriptor)  # the memory goes with the last row that anybody holds


class RowLock:
    """A lock that is held while one row is used. Not reentrant."""

    def __init__(self, descriptor: int, account: int) -> None:
        self._descriptor = descriptor
        self._account = account

    def __enter__(self) -> Self:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._account)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._account)


class SharedUsage(Usage):
    """One process's view of a row. The counts are sums over all processes. A process changes only its own part."""

    def __init__(self, file: UsageFile, account: int, quota: Quota, *, shard: int) -> None:
        super().__init__(quota)
        self._file = file
        self._account = account
        self._running = _SHARED + _COUNTS * shard
        self._open = self._running + 1
        self._lock = RowLock(file.descriptor, account)
        self._bounds_requests = (
            quota.requests_per_minute or quota.tokens_per_minute or quota.max_running
        ) is not None

    def begin_request(self) -> None:
        if self._bounds_requests:  # else nobody needs to know of it
            with self._held() as row:
                super().begin_request()
                row[self._running] += 1

    def end_request(self) -> None:
        if self._bounds_requests:
            with self._held() as row:
                row[self._running] -= 1

    def spend_tokens(self, count: int) -> None:
        if self.quota.tokens_per_minute is not None:
            with self._held():
                super().spend_tokens(count)

    def open_sessions(self, count: int) -> None:
        """Count the sessions first and then compare with the quota, without the lock: processes that open sessions at
        the same time see each other's.

        If there are too many, they are counted again under the lock.
        """
        row = self._file.row(self._account)
        row[self._open] += count
        if sum(row[_SHARED + 1 :: _COUNTS]) <= self.quota.max_sessions:
            return
        row[self._open] -= count
        with self._held() as row:
            super().open_sessions(count)
            row[self._open] += count

    def close_session(self) -> None:
        self._file.row(self._account)[self._open] -= 1

    @contextmanager
    def _held(self) -> "Iterator[memoryview[float]]":
        """The locked row, with the allowances of `self` set to those that all processes share."""
        with self._lock:
            row = self._file.row(self._account)
            allowances = (self.requests, self.tokens)
            for i, allowance in enumerate(allowances):
                left, at = row[2 * i], row[2 * i + 1]
                if at:  # else nobody has used it yet
                    allowance.state = left, at
            self.num_running = int(sum(row[_SHARED::_COUNTS]))
            self.num_open = int(sum(row[_SHARED + 1 :: _COUNTS]))
            yield row
            for i, allowance in enumerate(allowances):
                row[2 * i], row[2 * i + 1] = allowance.state
