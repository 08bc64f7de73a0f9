"""How SGLang servers are started on this machine: options, command line, GPUs."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from areal_sdk.backends.remote.processes import (
    ServerCommand,
    ServerLauncher,
    ServerProcess,
    free_port,
    start_process,
)
from areal_sdk.backends.sglang.install import SGLangEnvironment
from areal_sdk.errors import ConfigError
from areal_sdk.models.families import stored_dtype

BASE_LABEL = "base"
"""The weight label of a server that still serves the checkpoint it started from."""


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

    def command(self, environment: SGLangEnvironment, *, port: int) -> ServerCommand:
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
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if environment.cpu:
            variables |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(self.threads)}
        arguments = [str(environment.python), "-m", "sglang.launch_server", *flags, *self.extra]
        return ServerCommand(arguments, variables)


class SGLangLauncher(ServerLauncher):
    """Starts SGLang servers; each takes the GPUs after those of the one before it."""

    def __init__(
        self,
        options: ServerOptions,
        environment: SGLangEnvironment,
        log_dir: Path,
        count: int = 1,
    ) -> None:
        super().__init__(log_dir, name="sglang", count=count)
        self.options = options
        self.environment = environment
        self.options_of(count - 1)  # a mistake in the arguments shows before a server starts

    def command(self, index: int, *, port: int) -> ServerCommand:
        return self.options_of(index).command(self.environment, port=port)

    def options_of(self, index: int) -> ServerOptions:
        if self.environment.cpu or index == 0:
            return self.options  # SGLang's own default is the first GPU
        first, num_gpus = _gpus(self.options)
        gpu = str(first + index * num_gpus)
        return replace(self.options, extra=(*self.options.extra, "--base-gpu-id", gpu))


def start_server(
    options: ServerOptions,
    environment: SGLangEnvironment,
    *,
    log_path: Path,
    port: int = 0,
    outlives_us: bool = False,
) -> ServerProcess:
    """Start one server; see `start_process`."""
    port = port or free_port()
    command = options.command(environment, port=port)
    return start_process(command, port=port, log_path=log_path, outlives_us=outlives_us)


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
