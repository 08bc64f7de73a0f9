"""The start of SGLang servers on this machine: command line and GPUs."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from areal_sdk.backends.remote import EngineSection, ServerCommand, ServerLauncher, stored_dtype
from areal_sdk.errors import ConfigError
from areal_sdk.launcher import SHARE_VARIABLE
from areal_sdk_sglang.install import SGLangEnvironment, find_environment
from areal_sdk_sglang.settings import SGLangSection

BASE_LABEL = "base"
"""The weight label of a server that still serves the checkpoint it started from."""

_CPU_KV_TOKENS = 32768


class SGLangLauncher(ServerLauncher):
    """Starts SGLang servers; each takes the GPUs after those of the one before it."""

    def __init__(
        self,
        model: Path,
        environment: SGLangEnvironment,
        log_dir: Path,
        *,
        engine: EngineSection | None = None,
        settings: SGLangSection | None = None,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._environments = environments or {}
        self._settings = settings or SGLangSection()
        super().__init__(log_dir, name="sglang", count=self._settings.servers)
        self._model = model
        self._environment = environment
        self._engine = engine or EngineSection()
        self._gpu_of(self.count - 1)  # a mistake in the arguments shows before a server starts

    def command(self, index: int, *, port: int) -> ServerCommand:
        return self.command_at("127.0.0.1", port, index=index)

    def command_at(self, host: str, port: int, *, index: int = 0) -> ServerCommand:
        """The command line of a server that listens at `host`."""
        planned = self._environments.get(f"sglang-{index}", {})
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **planned}
        if self._environment.cpu:
            variables |= {
                "SGLANG_USE_CPU_ENGINE": "1",
                "OMP_NUM_THREADS": str(self._engine.threads),
            }
        arguments = [
            *(str(self._environment.python), "-m", "sglang.launch_server"),
            *("--host", host, "--port", str(port)),
            *self._model_flags(),
            *self._memory_flags(planned.get(SHARE_VARIABLE)),
            *self._device_flags(),
            *self._settings.arguments,
        ]
        if not planned and (gpu := self._gpu_of(index)) is not None:
            arguments += ["--base-gpu-id", str(gpu)]
        return ServerCommand(arguments, variables)

    def _model_flags(self) -> list[str]:
        dtype = self._engine.dtype  # SGLang's own `auto` would turn float32 into float16
        return [
            *("--model-path", str(self._model)),
            *("--dtype", stored_dtype(self._model) if dtype == "auto" else dtype),
            *("--weight-version", BASE_LABEL),
            "--incremental-streaming-output",
            "--sleep-on-idle",
            # An untrained policy fills its whole length with white space that a schema lets it have.
            "--constrained-json-disable-any-whitespace",
        ]

    def _memory_flags(self, share: str | None) -> list[str]:
        flags: list[str] = []
        engine, settings = self._engine, self._settings
        kv_tokens = settings.kv_tokens or (_CPU_KV_TOKENS if self._environment.cpu else None)
        if kv_tokens:
            flags += ["--max-total-tokens", str(kv_tokens)]
        if self._environment.cpu:
            flags += ["--mem-fraction-static", "0.2"]
        if (fraction := settings.memory_fraction or share) is not None:
            flags += ["--mem-fraction-static", str(fraction)]
        if engine.max_context:
            flags += ["--context-length", str(engine.max_context)]
        if "max_slots" in engine.model_fields_set:  # else SGLang's own choice
            flags += ["--max-running-requests", str(engine.max_slots)]
        if settings.colocated and not self._environment.cpu:
            flags += ["--enable-memory-saver", "--enable-weights-cpu-backup"]
        return flags

    def _device_flags(self) -> list[str]:
        flags: list[str] = []
        if self._environment.cpu:
            flags += ["--device", "cpu", "--attention-backend", "torch_native"]
            flags += ["--sampling-backend", "pytorch"]
        if self._settings.tp_size > 1:
            flags += ["--tp-size", str(self._settings.tp_size)]
        if self._settings.seeded:
            flags += ["--enable-deterministic-inference"]
        return flags

    def _gpu_of(self, index: int) -> int | None:
        """The first GPU of server `index` where none are planned; None: SGLang's own choice, the machine's first."""
        first, width = named_gpus(self._settings)
        return None if self._environment.cpu or index == 0 else (first or 0) + index * width


def named_gpus(settings: SGLangSection) -> tuple[int | None, int]:
    """The first GPU of the first server, if `arguments` name it, and how many each takes; `arguments` win."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--base-gpu-id", type=int)
    names = ("--tp-size", "--tensor-parallel-size", "--tp")
    parser.add_argument(*names, type=int, default=settings.tp_size)
    try:
        given, _ = parser.parse_known_args(settings.arguments)
    except argparse.ArgumentError as exc:
        raise ConfigError(f"engine.sglang.arguments: {exc}") from None
    return given.base_gpu_id, given.tp_size


def chosen_environment(section: EngineSection, own: SGLangSection) -> SGLangEnvironment:
    """The environment of this machine that the settings name; ConfigError if it cannot do what they ask."""
    environment = find_environment(own.environment)
    installed = "cpu" if environment.cpu else "cuda"
    if section.device not in ("auto", installed):
        raise ConfigError(
            f"engine.device = {section.device!r}, but the SGLang environment was made for "
            f"{installed}: areal-sdk engine install sglang{'' if environment.cpu else ' --cpu'}"
        )
    if own.seeded and environment.cpu:
        raise ConfigError(
            "engine.sglang.seeded: SGLang's deterministic inference has no attention for a CPU; "
            'seeds are honoured there by engine.name = "local"'
        )
    return environment
