"""One process among those that serve at one address: its number, and the files that they share."""

from dataclasses import dataclass
from pathlib import Path

from areal_sdk.config import Quota
from areal_sdk.gateway.accounts.accounts import Usage
from areal_sdk.gateway.processes.shard import Claims, Shard
from areal_sdk.gateway.processes.usage import SharedUsage, UsageFile


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of a gateway process, made by the main process for each."""

    shard: Shard
    directory: Path
    """Directory of the Unix sockets and the shared files of one server. Its path is short, because
    the path of a socket must be."""
    secret: bytes
    """Secret that the processes of this server alone know."""

    def socket_of(self, number: int) -> Path:
        """The socket at which process `number` takes requests that other processes pass on."""
        return self.directory / f"{number}.sock"

    def door_of(self, number: int) -> Path:
        """The socket at which process `number` takes connections that other processes hand over."""
        return self.directory / f"{number}.door"

    def open_usage(self) -> UsageFile:
        return UsageFile(self.directory / "usage", size=self.shard.size)


class SharedFiles:
    """The files of one process: open until `close`."""

    def __init__(self, membership: Membership) -> None:
        self._shard = membership.shard
        path = membership.directory / f"claims-{self._shard.number}"
        self.claims = Claims(path, secret=membership.secret)
        self._usage = membership.open_usage()

    def usage(self, name: str, quota: Quota) -> Usage:
        """The usage of the account of that name."""
        return SharedUsage(self._usage, self._usage.account(name), quota, shard=self._shard.number)

    def close(self) -> None:
        self.claims.close()
        self._usage.close()
