"""SGLang server processes on this machine: command line, log, end.

A server is several processes (HTTP, scheduler, detokenizer) in one session, which is signalled as
a whole. A server started for a run dies with the run, however the run ends; one started by
`engine start` outlives its starter.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from areal_sdk.backends.sglang.install import SGLangEnvironment
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.models.families import stored_dtype

BASE_LABEL = "base"
"""The weight label of a server that still serves the checkpoint it started from."""

_NUM_LOG_LINES = 12
_NUM_LINE_CHARACTERS = 300
"""SGLang writes all of its settings into one line."""
_LEASH = Path(__file__).with_name("_server_guard.py")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is started. `extra` goes to SGLang as it is, and wins."""

    model: Path
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`, or `auto`: as the checkpoint was saved. (SGLang's own
    `auto` would turn float32 into float16.)"""
    max_context: int | None = None
    max_requests: int | None = None
    """Decoded together; default: SGLang's own choice."""
    kv_tokens: int | None = None
    """Size of the KV pool; default: SGLang's own choice, on a CPU a small one."""
    memory_fraction: float | None = None
    tp_size: int = 1
    seeded: bool = False
    """Honour each request's seed; costs speed, SGLang calls it deterministic inference."""
    colocated: bool = False
    """Let the trainer have the memory between rollouts (`--enable-memory-saver`). On a CPU there is
    nothing to hand over but the cores."""
    threads: int = 1
    """OpenMP threads of a CPU server."""
    extra: tuple[str, ...] = ()

    def command(self, environment: SGLangEnvironment, *, port: int) -> list[str]:
        flags: list[str] = [
            *("--model-path", str(self.model)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", stored_dtype(self.model) if self.dtype == "auto" else self.dtype),
            *("--weight-version", BASE_LABEL),
            "--incremental-streaming-output",
            "--sleep-on-idle",
            # An untrained policy fills its whole length with white space that a schema lets it have.
            "--constrained-json-disable-any-whitespace",
        ]
        if environment.cpu:
            flags += ["--device", "cpu", "--attention-backend", "torch_native"]
            flags += ["--sampling-backend", "pytorch", "--mem-fraction-static", "0.2"]
            flags += ["--max-total-tokens", str(self.kv_tokens or 32768)]
        elif self.kv_tokens:
            flags += ["--max-total-tokens", str(self.kv_tokens)]
        if self.memory_fraction is not None:
            flags += ["--mem-fraction-static", str(self.memory_fraction)]
        if self.max_context:
            flags += ["--context-length", str(self.max_context)]
        if self.max_requests:
            flags += ["--max-running-requests", str(self.max_requests)]
        if self.tp_size > 1:
            flags += ["--tp-size", str(self.tp_size)]
        if self.seeded:
            flags += ["--enable-deterministic-inference"]
        if self.colocated and not environment.cpu:
            flags += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
        return [str(environment.python), "-m", "sglang.launch_server", *flags, *self.extra]

    def environment_variables(self, environment: SGLangEnvironment) -> dict[str, str]:
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if environment.cpu:
            variables |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(self.threads)}
        return variables


@dataclass(slots=True)
class ServerProcess:
    """A server on this machine. `process` is None when another command started it."""

    address: str
    pid: int
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    _is_stopped: bool = False

    @property
    def is_running(self) -> bool:
        return not self._is_stopped and _is_alive(self.pid)

    def last_lines(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(line[:_NUM_LINE_CHARACTERS] for line in lines[-_NUM_LOG_LINES:])

    def signal(self, number: int) -> None:
        """To every process of the server; not once it was stopped: the id may be another's by then."""
        if self._is_stopped:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL. Returns when it is gone; safe to call twice."""
        self.signal(signal.SIGCONT)  # a stopped process would never see the rest
        self.signal(signal.SIGTERM)
        if not await self._is_gone_within(grace_s):
            self.signal(signal.SIGKILL)
            if not await self._is_gone_within(5.0):
                raise EngineError(f"SGLang server {self.pid} did not die; log: {self.log_path}")
        self.signal(signal.SIGKILL)  # children that outlived the first process of the group
        self._is_stopped = True
        if self.process is not None:
            self.process.wait(timeout=5.0)  # it is dead already: this only takes note of it

    async def _is_gone_within(self, seconds: float) -> bool:
        ends_at = time.monotonic() + seconds
        while self.is_running and time.monotonic() < ends_at:  # noqa: ASYNC110 - no event to wait on
            await asyncio.sleep(0.05)
        return not self.is_running


def start_server(
    options: ServerOptions,
    environment: SGLangEnvironment,
    *,
    log_path: Path,
    port: int = 0,
    outlives_us: bool = False,
) -> ServerProcess:
    """Start one server; it is ready some seconds later (`client.wait_until_ready`).

    Unless it `outlives_us` the kernel ends it with the *thread* that called this: call it in one
    that lives as long as the server should, such as the event loop's.
    """
    port = port or free_port()
    command = options.command(environment, port=port)
    if not outlives_us:
        command = [sys.executable, "-I", str(_LEASH), str(os.getpid()), *command]
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **options.environment_variables(environment)},
                start_new_session=True,
            )
        except OSError as exc:
            raise EngineError(f"{environment.python} could not be started: {exc}") from exc
    return ServerProcess(f"http://127.0.0.1:{port}", process.pid, log_path, process)


def _gpus(options: ServerOptions) -> tuple[int, int]:
    """The first GPU of a server and how many it takes; what goes to SGLang as it is wins."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--base-gpu-id", type=int, default=0)
    parser.add_argument(
        *("--tp-size", "--tensor-parallel-size", "--tp"), type=int, default=options.tp_size
    )
    try:
        given, _ = parser.parse_known_args(options.extra)
    except argparse.ArgumentError as exc:
        raise ConfigError(f"engine.sglang.arguments: {exc}") from None
    return given.base_gpu_id, given.tp_size


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts the servers of one engine; they die with this process."""

    options: ServerOptions
    environment: SGLangEnvironment
    log_dir: Path
    count: int = 1

    def __post_init__(self) -> None:
        self.options_of(self.count - 1)  # a mistake in the arguments shows before a server starts

    def start_all(self) -> list[ServerProcess]:
        return [
            start_server(
                self.options_of(index),
                self.environment,
                log_path=self._log_path(index),
                port=port,
            )
            for index, port in enumerate(free_ports(self.count))
        ]

    def options_of(self, index: int) -> ServerOptions:
        """Of one server: each takes the GPUs after those of the one before it."""
        if self.environment.cpu or index == 0:
            return self.options  # SGLang's own default is the first GPU
        first, num_gpus = _gpus(self.options)
        gpu = str(first + index * num_gpus)
        return replace(self.options, extra=(*self.options.extra, "--base-gpu-id", gpu))

    def _log_path(self, index: int) -> Path:
        return self.log_dir / f"sglang-{index}.log"

    def restart(self, server: ServerProcess) -> ServerProcess:
        """A new process in place of one that ended, at its address and on its GPUs."""
        logs = [self._log_path(index) for index in range(self.count)]
        return start_server(
            self.options_of(logs.index(server.log_path)),
            self.environment,
            log_path=server.log_path,
            port=int(server.address.rsplit(":", 1)[1]),
        )


def free_ports(count: int) -> list[int]:
    """Different ones: all are held until the last is found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
