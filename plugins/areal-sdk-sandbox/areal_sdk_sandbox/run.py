"""`Sandbox`: a program, run to its end in a sandbox, and how it ended."""

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from areal_sdk.errors import InfrastructureError
from areal_sdk_sandbox import launcher, supervisor
from areal_sdk_sandbox.bubblewrap import NOT_ONES_OWN, bubblewrap_words
from areal_sdk_sandbox.forwarding import INNER_HOST, INNER_PORT, Address, forwarded
from areal_sdk_sandbox.limits import LimitName, Limits
from areal_sdk_sandbox.seccomp import syscall_filter

logger = logging.getLogger(__name__)

Isolation = Literal["auto", "bubblewrap", "rlimits"]
"""`auto` takes bubblewrap where it works, else limits alone, with a warning."""

_MARGIN_S = 30.0
"""Seconds beyond the wall limit that the sandbox may take to start and to end on a busy machine."""
_OPEN_FILES = 256
_MEMORY_BACKSTOP = 2
"""The kernel refuses this multiple of the memory limit. The supervisor, which names the limit, ends the program earlier."""
_PROCESS_BACKSTOP = 16
_NOBODY = 65534
_FAMILY_VARIABLE = "AREAL_SDK_FAMILY"
"""Variable by which a run of areal-sdk finds, and ends, all processes that it started."""
_INSTALL = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap)"
_PYTHON = os.path.abspath(sys.executable)
"""This Python by a path without `..`: a sandbox has the directories that lead to it, and none beside them."""
_ISOLATED = ("-I", "-S")
"""Options of Python: no site packages and none of the user's variables, so a start takes 10 ms."""


class SandboxError(InfrastructureError):
    """A sandbox could not be started or ended. A mistake of the program inside is no such error."""


@dataclass(frozen=True, slots=True)
class SandboxEnd:
    """The end of a program in a sandbox."""

    code: int | None
    """Exit code of the program, 128 and more for a signal; None if the program was ended at a
    limit."""
    limit: LimitName | None
    """The limit that ended the program."""
    stdout: bytes
    stderr: bytes
    seconds: float
    cpu_s: float
    peak_memory_mb: float
    """Largest memory of the program in megabytes, looked at every 50 ms."""
    limits: Limits

    @property
    def ok(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.limit:
            return f"ended at its {self.limits.named(self.limit)}"
        return f"exit code {self.code}"


class Sandbox:
    """Runs programs. Each run is a sandbox of its own; many may run at the same time.

    A program sees `/usr`, the Python installation of this process and what `readable` names, may write
    to its working directory only, and has no network. Under `rlimits` all files can be read, and files
    and processes of the same user can be harmed, unless this process is root's.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        isolation: Isolation = "auto",
        readable: Sequence[str | Path] = (),
        writable: Sequence[str] = (),
    ) -> None:
        """`writable`: directories at the root, such as /app, that programs find empty and may fill, each up to
        `disk_mb`. They need bubblewrap."""
        self.limits = limits or Limits()
        self._isolation = isolation
        self._readable = [str(Path(path).resolve()) for path in readable]
        self._writable = [_new_directory(path) for path in writable]

    async def is_isolated(self) -> bool:
        """Whether programs are cut off by bubblewrap. SandboxError if that was asked for and fails."""
        return await self._bubblewrap() is not None

    async def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        reaches: Address | None = None,
    ) -> SandboxEnd:
        """Run `words` to their end, with `files` in their working directory.

        Only the variables `env` are added to a plain environment. `reaches`: host and port of the one
        address outside that the program reaches, as `INNER_ADDRESS`; bubblewrap is needed for it. All
        processes of the program are gone when this returns, and when it is cancelled.
        """
        bubblewrap = await self._bubblewrap()
        if reaches is not None and bubblewrap is None:
            raise SandboxError(
                f"limits alone allow no network, and no address to reach: {_INSTALL}"
            )
        if self._writable and bubblewrap is None:
            raise SandboxError(f"limits alone make no directory {self._writable[0]}: {_INSTALL}")
        async with contextlib.AsyncExitStack() as stack:
            held = _files(files or {}, as_descriptors=bubblewrap is not None)
            at, descriptors = stack.enter_context(held)
            order = self._order(words, env or {}, bubblewrap, at, descriptors, tuple(pass_fds))
            if reaches is not None:
                channel = await stack.enter_async_context(forwarded(reaches))
                order["launch"]["listen"] = [channel, INNER_HOST, INNER_PORT]
                order["pass_fds"] = (*order["pass_fds"], channel)
            if at:
                os.chown(at, order["launch"]["uid"] or -1, -1)
            order["stdin_bytes"] = len(stdin)
            message = json.dumps(order).encode() + b"\n" + stdin
            report = await _supervise(message, order["pass_fds"], self.limits.wall_s + _MARGIN_S)
        return _read_report(report, self.limits)

    async def _bubblewrap(self) -> str | None:
        if self._isolation == "rlimits":
            return None
        program, problem = await _found_bubblewrap()
        if program is None and self._isolation == "bubblewrap":
            raise SandboxError(f"bubblewrap does not run here ({problem}): {_INSTALL}")
        if program is None:
            _warn(problem)
        return program

    def _order(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        bubblewrap: str | None,
        directory: str,
        files: Mapping[str, int],
        kept: tuple[int, ...],
    ) -> dict[str, Any]:
        limits = self.limits
        uid = _unused_uid() if os.getuid() == 0 else 0
        home = "/tmp" if bubblewrap else directory
        whole_env = {**_plain_environment(home), **env}
        if not bubblewrap and _FAMILY_VARIABLE in os.environ:
            whole_env[_FAMILY_VARIABLE] = os.environ[_FAMILY_VARIABLE]
        outer: list[str] = []
        if bubblewrap:
            outer = bubblewrap_words(
                bubblewrap,
                limits,
                readable=self._readable,
                files=files,
                writable=self._writable,
            )
        launch = {
            "words": list(words),
            "env": whole_env,
            "directory": directory,
            "uid": uid,
            "keeps_reading": not bubblewrap,
            "listen": None,
            "filter": syscall_filter(has_namespaces=bubblewrap is not None).hex(),
            "keep_fds": kept,
            "rlimits": {
                "CPU": math.ceil(limits.cpu_s),
                "DATA": _MEMORY_BACKSTOP * limits.memory_mb << 20,
                "FSIZE": limits.disk_mb << 20,
                "NOFILE": _OPEN_FILES,
                "NPROC": limits.processes + _PROCESS_BACKSTOP + (0 if uid else _num_threads()),
                "CORE": 0,
                "MEMLOCK": 0,
                "MSGQUEUE": 0,
            },
        }
        return {
            "limits": asdict(limits),
            "outer": outer,
            "writable": self._writable,
            "launcher": [
                _PYTHON,
                *_ISOLATED,
                "-c",
                Path(launcher.__file__).read_text(encoding="utf-8"),
            ],
            "launch": launch,
            "env": _plain_environment(home),
            "own_uid": uid if uid != _NOBODY else 0,
            "pass_fds": (*files.values(), *kept),
        }


def _new_directory(path: str) -> str:
    """`path`, if a sandbox can have it as a directory of its own."""
    name = path.removeprefix("/")
    if f"/{name}" != path or "/" in name or not name or name in NOT_ONES_OWN:
        raise ValueError(
            f"writable directory {path!r}: give a new directory at the root, such as /app"
        )
    return path


def why_not_isolated() -> str:
    """The reason why programs cannot be isolated here, and the cure; empty if they can be. The call
    may block: it tries."""
    program, problem = _find_bubblewrap()
    return "" if program else f"bubblewrap does not run here ({problem}): {_INSTALL}"


async def _found_bubblewrap() -> tuple[str | None, str]:
    """The result of `_find_bubblewrap`. The first call tries it in a thread of its own, since user code may hold
    all threads of the loop's pool."""
    if _find_bubblewrap.cache_info().currsize:
        return _find_bubblewrap()
    pool = ThreadPoolExecutor(1, thread_name_prefix="find bubblewrap")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, _find_bubblewrap)
    finally:
        pool.shutdown(wait=False)


@functools.cache
def _find_bubblewrap() -> tuple[str | None, str]:
    """The program, or None and why not. Tried once: a container may forbid what it needs."""
    program = shutil.which("bwrap")
    problem = "it is not installed"
    if program is not None:
        words = [*bubblewrap_words(program, Limits(), readable=(), files={}), "true"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            tried = subprocess.run(words, capture_output=True, timeout=_MARGIN_S, text=True)
            if tried.returncode == 0:
                return program, ""
            problem = tried.stderr.strip()[-200:] or f"exit code {tried.returncode}"
    return None, problem


@functools.cache
def _warn(problem: str) -> None:
    """Log the warning, once a process."""
    logger.warning(
        "programs run WITHOUT a sandbox, under limits alone: bubblewrap does not run here (%s). They can "
        "read your files. Train on code only after you %s",
        problem,
        _INSTALL,
    )


async def _supervise(message: bytes, descriptors: Sequence[int], timeout_s: float) -> bytes:
    """The supervisor's report. The end of its stdin has it end the program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *_ISOLATED,
        "-c",
        supervisor.PROGRAM,
        supervisor.__file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_plain_environment("/"),
        pass_fds=descriptors,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(
                ConnectionError
            ):  # a supervisor that fails says why in its log
                process.stdin.write(message)
                await process.stdin.drain()
            return await process.stdout.read()
    except TimeoutError:
        raise SandboxError(f"the sandbox gave no report within {timeout_s:g} s") from None
    finally:
        process.stdin.close()
        async with _ended_at_last(process):
            await process.wait()


@contextlib.asynccontextmanager
async def _ended_at_last(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_MARGIN_S):
            yield
    except TimeoutError:
        process.kill()


def _read_report(output: bytes, limits: Limits) -> SandboxEnd:
    head, _, written = output.partition(b"\n")
    try:
        report = json.loads(head)
    except ValueError:
        raise SandboxError("the supervisor of a sandbox ended without a report") from None
    if report["problem"]:
        raise SandboxError(f"the sandbox did not start: {report['problem']}")
    num_stdout = report["stdout_bytes"]
    return SandboxEnd(
        code=None if report["limit"] else report["code"],
        limit=cast(LimitName, report["limit"]) or None,
        stdout=written[:num_stdout],
        stderr=written[num_stdout:],
        seconds=report["seconds"],
        cpu_s=report["cpu_s"],
        peak_memory_mb=report["peak_memory_mb"],
        limits=limits,
    )


@contextlib.contextmanager
def _files(
    files: Mapping[str, bytes], *, as_descriptors: bool
) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The program's files: descriptors for bubblewrap, else a directory that is removed afterwards."""
    for name in files:
        if not name or "/" in name or name in (".", ".."):
            raise ValueError(
                f"file {name!r}: give a plain name; it is put into the working directory"
            )
    if not as_descriptors:
        with tempfile.TemporaryDirectory(
            prefix="areal-sdk-sandbox-", ignore_cleanup_errors=True
        ) as directory:
            for name, data in files.items():
                (Path(directory) / name).write_bytes(data)
            yield directory, {}
        return
    descriptors: dict[str, int] = {}
    try:
        for name, data in files.items():
            descriptors[name] = os.memfd_create(name)
            with os.fdopen(os.dup(descriptors[name]), "wb") as file:
                file.write(data)
            os.lseek(descriptors[name], 0, os.SEEK_SET)
        yield "", descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _plain_environment(home: str) -> dict[str, str]:
    """Nothing of this process's variables, which may hold keys."""
    here = os.path.dirname(_PYTHON)
    return {
        "PATH": f"{here}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@functools.cache
def _has_all_uids() -> bool:
    first, _, count = Path("/proc/self/uid_map").read_text(encoding="utf-8").split()[:3]
    return first == "0" and int(count) >= 2**31


def _unused_uid() -> int:
    """A user whom nobody else is, so that the kernel counts the processes of one sandbox."""
    return 2**20 + secrets.randbelow(2**30) if _has_all_uids() else _NOBODY


def _num_threads() -> int:
    """The threads of this user: outside of a user namespace the kernel counts them too."""
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count
