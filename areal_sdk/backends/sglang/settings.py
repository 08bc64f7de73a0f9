"""`[engine.sglang]`: the settings of this backend, and the engine they describe."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from areal_sdk.backends.remote.options import RemoteOptions
from areal_sdk.backends.sglang.engine import SGLangEngine
from areal_sdk.backends.sglang.install import SGLangEnvironment, find_environment
from areal_sdk.backends.sglang.servers import ServerOptions, SGLangLauncher
from areal_sdk.config import EngineSection, Positive, Seconds, Section, explain
from areal_sdk.errors import ConfigError


class SGLangSection(Section):
    """SGLang servers: how many, how they get new weights, and what a swap does to requests."""

    servers: Positive = 1
    """Servers to start, where `engine.name` names none that run."""
    environment: Path | None = None
    """Where `areal-sdk engine install sglang --into` put it; default: the usual place."""
    transport: Literal["disk", "tensor", "distributed"] = "tensor"
    """How weights travel: files, shared memory of one host, or a process group."""
    interrupt: Literal["retract", "abort", "drain"] = "retract"
    """What a swap does to requests in flight; `engine.kv_on_update = "keep"` overrides it."""
    group_backend: Literal["gloo", "nccl"] = "gloo"
    """Of the distributed transport."""
    group_host: str = "127.0.0.1"
    """Address of this machine as servers reach it, for the distributed transport."""
    router: str | None = None
    """Address of an sglang-router that runs without servers: requests go through it, and it gets
    the servers from us. Default: requests are placed here, sessions where their prefix is cached."""
    tp_size: Positive = 1
    """GPUs a server."""
    kv_tokens: Positive | None = None
    """Size of a server's KV pool; default: SGLang's choice."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a GPU's memory for weights and KV."""
    seeded: bool = False
    """Honour seeds of requests; slower (SGLang's deterministic inference, which wants a GPU)."""
    colocated: bool = False
    """Engine and trainer share a device: servers hold generation and lend their memory to each
    training step. `memory_fraction` must leave room for what the trainer keeps between steps."""
    api_key: str | None = Field(default=None, repr=False)
    """Of servers that ask for one."""
    request_wait_s: Seconds = 120.0
    """How long a request waits when no server is ready."""
    arguments: tuple[str, ...] = ()
    """Passed to `sglang.launch_server` as they are."""


def engine_from_settings(
    section: EngineSection,
    settings: Mapping[str, Any],
    *,
    model_dir: Path,
    log_dir: Path,
    version: int = 0,
) -> SGLangEngine:
    """The engine of `engine.name = "sglang"` or `"http://host:port,http://..."`, not started."""
    try:
        own = SGLangSection.model_validate(dict(settings))
    except ValidationError as exc:
        raise ConfigError(f"engine.sglang: {explain(exc, SGLangSection)}") from None
    if own.colocated and own.transport == "distributed" and own.group_backend == "nccl":
        raise ConfigError(
            "engine.sglang.colocated: nccl has no group of two processes on one GPU; use "
            'engine.sglang.transport = "tensor"'
        )
    addresses = server_addresses(section.name)
    launcher = None
    if addresses:
        _refuse_what_running_servers_ignore(section, settings)
    else:
        launcher = SGLangLauncher(
            ServerOptions(
                model_dir,
                dtype=section.dtype,
                max_context=section.max_context,
                max_requests=section.max_slots if "max_slots" in section.model_fields_set else None,
                kv_tokens=own.kv_tokens,
                memory_fraction=own.memory_fraction,
                tp_size=own.tp_size,
                seeded=own.seeded,
                colocated=own.colocated,
                threads=section.threads,
                extra=own.arguments,
            ),
            _environment(section, own),
            log_dir,
            count=own.servers,
        )
    return SGLangEngine(
        model_dir,
        addresses,
        log_dir=log_dir,
        launcher=launcher,
        version=version,
        max_context=section.max_context,
        api_key=own.api_key,
        options=RemoteOptions(
            transport=own.transport,
            interrupt="in_place" if section.kv_on_update == "keep" else own.interrupt,
            no_server_timeout_s=own.request_wait_s,
            backend=own.group_backend,
            host=own.group_host,
            colocated=own.colocated,
            router=own.router,
        ),
    )


def _environment(section: EngineSection, own: SGLangSection) -> SGLangEnvironment:
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


def _refuse_what_running_servers_ignore(
    section: EngineSection, settings: Mapping[str, Any]
) -> None:
    """Servers named by address were started by somebody, with settings of their own."""
    ours = {"dtype", "device", "max_slots", "threads"} & section.model_fields_set
    started = {"servers", "environment", "tp_size", "kv_tokens", "memory_fraction", "seeded"}
    theirs = (started | {"colocated", "arguments"}) & set(settings)
    if ours or theirs:
        names = [f"engine.{name}" for name in ours] + [f"engine.sglang.{name}" for name in theirs]
        raise ConfigError(
            f"{', '.join(sorted(names))} cannot change servers that already run ({section.name}): "
            "remove it, or start them with it: areal-sdk engine start"
        )


def server_addresses(name: str) -> list[str]:
    """The addresses in `--engine http://a:1,http://b:2`; none for a name.

    >>> server_addresses("http://a:30000, http://b:30000/")
    ['http://a:30000', 'http://b:30000']
    >>> server_addresses("sglang")
    []
    """
    parts = [part.strip().rstrip("/") for part in name.split(",")]
    if not any("://" in part for part in parts):
        return []
    for part in parts:
        if not part.startswith(("http://", "https://")):
            raise ConfigError(
                f"--engine {name!r}: {part!r} is not an address like http://host:30000"
            )
    return parts
