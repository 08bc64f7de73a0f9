"""Child processes on this machine: started, watched, and never left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from areal_sdk.errors import ProcessError
from areal_sdk.process.child import Child, kill_all
from areal_sdk.process.connection import Connection
from areal_sdk.process.family import FAMILY_VARIABLE, end_family, new_family
from areal_sdk.process.memory import used_mb
from areal_sdk.process.spec import ChildExit, MemoryLimit, ProcessSpec, last_lines, open_log
from areal_sdk.process.threads import in_thread

LAST_WORDS_S = 0.5
"""Time to read on after a child's death: its last replies may still be in the socket."""

FAREWELL_S = 5.0
"""Seconds that a child may live on after it closed its connection."""

LOOK_EVERY_S = 0.25
"""Seconds between two looks at the memory of a child that has a limit."""
_SHARE_OF_LOOKING = 20
"""Pause after a look at memory, in durations of that look: so looking takes at most a twentieth of the time."""

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from areal_sdk.process.entry import main; main()"
)
_BOOTSTRAP_ELSEWHERE = "from areal_sdk.process.entry import main; main()"
"""Code that starts a child in another environment. It imports nothing of this environment, since
the other has packages of other versions."""
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


async def spawn(spec: ProcessSpec, *, log_dir: Path, start_timeout_s: float = 120.0) -> Child:
    """Start `spec` in a process of its own and wait until its entry is up.

    Its output goes to `log_dir/<name>.log`. It is in its own session, so Ctrl-C does not reach it, and
    the kernel kills it when this process dies.
    """
    log_path = log_dir / f"{spec.name}.log"
    log_start = log_path.stat().st_size if log_path.exists() else 0
    ours, theirs = socket.socketpair()
    with theirs:
        connection = await _attach(ours)
        family = new_family(os.environ)
        try:
            process = _start(spec, theirs, log_path, family)
        except OSError as exc:
            connection.close()
            raise ProcessError(f"{spec.name} could not be started: {exc}") from exc
    # Nothing is awaited before the process has an owner: a cancelled spawn leaves none behind.
    body = LocalProcess(process, log_path, log_start, family=family, memory=spec.memory)
    child = Child(spec, body, connection)
    body.watch(child, connection)
    try:
        child.start(sys_path=None if spec.python else sys.path)
        await child.wait_started(timeout_s=start_timeout_s)
    except BaseException:
        await kill_all([child])
        raise
    return child


async def _attach(sock: socket.socket) -> Connection:
    connection = Connection()
    try:
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
    except BaseException:
        sock.close()
        raise
    return connection


def _start(
    spec: ProcessSpec, theirs: socket.socket, log_path: Path, family: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-u", "-P", "-c", _BOOTSTRAP]
    if spec.python:
        command = [spec.python, "-u", "-I", "-c", _BOOTSTRAP_ELSEWHERE]
    # -P and the explicit path: a file of the user's directory must not shadow the standard library.
    arguments = [_PACKAGE_ROOT, str(theirs.fileno()), str(os.getpid()), spec.name]
    with open_log(log_path) as log:
        return subprocess.Popen(
            command + arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **spec.environment(), FAMILY_VARIABLE: family},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )


class LocalProcess:
    """A process of this machine; tells its `Child` when it ends."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        log_path: Path,
        log_start: int,
        *,
        family: str,
        memory: MemoryLimit | None = None,
    ) -> None:
        self.host = ""
        self.log_path = log_path
        self._log_start = log_start  # earlier lines are of a former process of this name
        self._process = process
        self._family = family
        self._memory = memory
        self._limit = ""
        """The limit that the child has passed."""
        self._is_reaped = False
        self._hung_up = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, child: Child, connection: Connection) -> None:
        """Tell `child` when the process or its connection ends."""
        connection.on_lost = lambda why: self._hung_up.set()
        self._watcher = asyncio.create_task(self._watch(child), name=f"watch {child.name}")

    def signal(self, number: int) -> None:
        if not self._is_reaped:  # until then neither its pid nor its group can be anyone else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def ask_for_stacks(self) -> None:
        if not self._is_reaped:  # the entry has registered faulthandler before it was called
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    async def _watch(self, child: Child) -> None:
        dead = asyncio.create_task(self._wait_dead(), name=f"wait for pid {self.pid}")
        hung_up = asyncio.create_task(self._hung_up.wait())
        looking = asyncio.create_task(self._keep_limit(), name=f"memory of {child.name}")
        await asyncio.wait({dead, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if not dead.done():
            await asyncio.wait({dead}, timeout=FAREWELL_S)
        else:
            await asyncio.wait({hung_up}, timeout=LAST_WORDS_S)
        hung_up.cancel()
        looking.cancel()
        self.signal(signal.SIGKILL)  # and whatever it started and left behind
        await dead
        await in_thread(lambda: end_family(self._family), name=f"end what {child.name} started")
        status = self._process.wait()
        self._is_reaped = True
        code, number = (None, -status) if status < 0 else (status, None)
        lines = last_lines(self.log_path, start=self._log_start)
        child.ended(ChildExit(code, number, limit=self._limit, last_lines=lines))

    async def _keep_limit(self) -> None:
        """Kill the process, with all that it started, once they exceed their limit: a run may need the memory."""
        clock = asyncio.get_running_loop().time
        while self._memory is not None:
            began = clock()
            used = await in_thread(lambda: used_mb(self._family), name="look at memory")
            if used > self._memory.mb:
                self._limit = str(self._memory)
                self.signal(signal.SIGKILL)
                return
            await asyncio.sleep(max(LOOK_EVERY_S, _SHARE_OF_LOOKING * (clock() - began)))

    async def _wait_dead(self) -> None:
        """Return once the process is dead. The caller reaps it, so until then no other process gets its pid."""
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
