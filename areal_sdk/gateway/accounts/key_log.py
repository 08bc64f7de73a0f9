"""A file of callers' keys that grows while servers read it: one line for each key that is made or revoked.

The file has no key, only the digest of each. It is its own audit trail, since no line is ever changed. All processes of
a server read it by themselves, so none of them has to tell another.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from getpass import getuser
from hashlib import sha256
from pathlib import Path

import orjson

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry.files import PRIVATE, JsonLines

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key was made, or revoked."""

    at: str
    """UTC time at which the line was written."""
    by: str
    """The user of the machine who made or revoked the key."""
    user: str
    key: str
    """Name of the key among those of the user."""
    sha256: str = ""
    """Digest of a key that was made; empty for one that was revoked."""

    @property
    def name(self) -> str:
        return f"{self.user}/{self.key}"

    @property
    def is_made(self) -> bool:
        return bool(self.sha256)


def digest_of(key: str) -> str:
    """The digest by which a key is known. Keys are random and long, so it gives nothing away."""
    return sha256(key.encode(errors="surrogatepass")).hexdigest()


def make_key(path: Path, name: str) -> str:
    """Make the key that `name` (`USER/KEY`) names, and return its secret, which no file has. A missing file is made."""
    user, _, key = name.partition("/")
    for part in (user, key):
        if not _NAME.fullmatch(part):
            raise ConfigError(
                f"{name!r} names no key: write USER/KEY, as in alice/laptop, each of up to 64 letters, digits, '.', "
                "'_' and '-'"
            )
    if user == "admin":
        raise ConfigError("the admin has one key, AREAL_SDK_ADMIN_KEY: give the user another name")
    made = f"sk-{secrets.token_urlsafe(24)}"
    with _locked(path, os.O_CREAT):
        if any(line.name == name for line in read_lines(path)):
            raise ConfigError(
                f"{path} has had a key {name}, and records name it: give the new one another name"
            )
        _append(path, [_line(user, key, digest_of(made))])
    return made


def revoke_keys(path: Path, name: str) -> Sequence[str]:
    """Revoke the key `USER/KEY`, or all keys of `USER`; returns their names. ConfigError if there are none."""
    with _locked(path):
        valid = valid_keys(read_lines(path))
        gone = [line for line in valid if name in (line.name, line.user)]
        if not gone:
            known = ", ".join(line.name for line in valid) or "none"
            raise ConfigError(f"{path} has no valid key {name!r}; valid: {known}")
        _append(path, [_line(line.user, line.key) for line in gone])
    return [line.name for line in gone]


def valid_keys(lines: Sequence[KeyLine]) -> Sequence[KeyLine]:
    """The lines of the keys that were made and not revoked."""
    revoked = {line.name for line in lines if not line.is_made}
    return [line for line in lines if line.is_made and line.name not in revoked]


def read_lines(path: Path) -> Sequence[KeyLine]:
    """All whole lines of the file. ConfigError names a line that `areal-sdk keys` did not write."""
    lines = []
    for number, raw in enumerate(_whole(_read(path)).splitlines(), start=1):
        if (line := _parse(raw)) is None:
            raise ConfigError(
                f"{path}:{number} is no line of `areal-sdk keys`: the file was changed by hand; take the line out"
            )
        lines.append(line)
    return lines


class FollowedKeys:
    """The lines that a file of keys gets, each once. Looking for them costs one `stat`."""

    def __init__(self, path: Path) -> None:
        """Read the file. ConfigError if it is missing, or has a line that `areal-sdk keys` did not write."""
        read_lines(path)
        self.path = path
        self._size = 0
        self._problem = ""

    def problem(self) -> str:
        """The latest problem with the file, once; empty if there is none."""
        problem, self._problem = self._problem, ""
        return problem

    def new_lines(self) -> Sequence[KeyLine]:
        """The lines since the last call. A file that is gone or was cut changes nothing: keys stay as they were."""
        try:
            size = os.stat(self.path).st_size
            if size == self._size:
                return ()
            added = _whole(_read(self.path, self._size)) if size > self._size else b""
        except (OSError, ConfigError):
            return self._report("cannot be read")
        if not added:
            return self._report("was cut, and must only grow") if size < self._size else ()
        self._size += len(added)
        found = [_parse(raw) for raw in added.splitlines()]
        if None in found:
            self._report("has a line that is none of `areal-sdk keys`, which was left out")
        return [line for line in found if line is not None]

    def _report(self, what: str) -> Sequence[KeyLine]:
        if not self._problem:
            self._problem = f"{self.path} {what}: known keys stay as they were; change them with `areal-sdk keys`"
        return ()


def _line(user: str, key: str, digest: str = "") -> KeyLine:
    return KeyLine(datetime.now(UTC).isoformat(timespec="seconds"), _own_name(), user, key, digest)


def _own_name() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # an account of the machine without a name, as in some containers
        return str(os.getuid())


@contextmanager
def _locked(path: Path, flags: int = 0) -> Iterator[None]:
    """Lock the file: no other command changes it meanwhile, and what was written outlives a power cut."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, PRIVATE)
    except OSError as exc:
        raise ConfigError(
            f"{path}: {exc.strerror}; `areal-sdk keys make {path} USER/KEY` makes the first key"
        ) from exc
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        os.fsync(file)
    finally:
        os.close(file)


def _append(path: Path, lines: Sequence[KeyLine]) -> None:
    with closing(JsonLines(path)) as file:
        for line in lines:
            file.append({name: value for name, value in asdict(line).items() if value})


def _read(path: Path, start: int = 0) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read()
    except OSError as exc:
        raise ConfigError(
            f"{path}: {exc.strerror}; `areal-sdk keys make {path} USER/KEY` makes the first key"
        ) from exc


def _whole(text: bytes) -> bytes:
    """The text up to its last line break: a line may be half written."""
    return text[: text.rfind(b"\n") + 1]


def _parse(raw: bytes) -> KeyLine | None:
    try:
        line = KeyLine(**orjson.loads(raw))
    except (orjson.JSONDecodeError, TypeError):
        return None
    texts = all(isinstance(value, str) for value in asdict(line).values())
    is_named = texts and _NAME.fullmatch(line.user) and _NAME.fullmatch(line.key)
    return line if is_named and (not line.sha256 or _DIGEST.fullmatch(line.sha256)) else None
