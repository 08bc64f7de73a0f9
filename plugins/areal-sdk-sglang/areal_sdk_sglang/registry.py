"""Servers that outlive the command that started them: one small file each, under one directory."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from areal_sdk.backends.remote import ServerProcess
from areal_sdk.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerRecord:
    name: str
    address: str
    model: str
    log: str
    pid: int
    started: int
    """The kernel's start time of `pid`: a pid alone may by now be somebody else's."""

    @property
    def is_running(self) -> bool:
        return start_time(self.pid) == self.started

    @property
    def process(self) -> ServerProcess:
        return ServerProcess(self.address, self.pid, Path(self.log))


class ServerRegistry:
    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or _default_directory()

    def add(self, name: str, server: ServerProcess, *, model: Path) -> ServerRecord:
        started = start_time(server.pid)
        if started is None:
            raise ConfigError(
                f"the server died at once; the end of its log:\n{server.last_lines()}"
            )
        record = ServerRecord(
            name, server.address, str(model), str(server.log_path), server.pid, started
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path(name).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        return record

    def records(self) -> list[ServerRecord]:
        """Records by name. Files of servers that are gone are kept: their logs say why."""
        files = sorted(self._directory.glob("*.json"))
        return [ServerRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def get(self, name: str | None) -> ServerRecord:
        """The named one, or the only one."""
        records = self.records()
        known = ", ".join(record.name for record in records) or "none"
        if name is None:
            if len(records) == 1:
                return records[0]
            raise ConfigError(f"name the server you mean; known: {known}")
        for record in records:
            if record.name == name:
                return record
        raise ConfigError(f"no server is named {name!r}; known: {known}")

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def start_time(pid: int) -> int | None:
    """Clock ticks since boot; None when there is no such process, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _default_directory() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "areal-sdk" / "servers"
