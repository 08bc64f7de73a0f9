"""`[engine.sglang]`: the settings of this backend, and the engine they describe."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from areal_sdk.config import Positive, Seconds, Section
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
