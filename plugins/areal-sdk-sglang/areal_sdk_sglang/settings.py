"""`[engine.sglang]`: the settings of this backend, and the servers that a name means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from areal_sdk.backends.remote import RemoteSection, TransportName
from areal_sdk.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]


class SGLangSection(RemoteSection):
    """SGLang servers: how many, how they are started, and how they get new weights."""

    servers: Positive = 1
    """Number of servers to start, if `engine.name` names no running servers."""
    environment: Path | None = None
    """Directory of SGLang's environment (`areal-sdk engine install sglang --into`); default: the usual one."""
    transport: TransportName = "tensor"
    """Path of new weights to the servers: files, shared memory of one host, or a process group. Where a launcher places
    the servers on several machines: `disk`."""
    tp_size: Positive = 1
    """GPUs per server."""
    kv_tokens: Positive | None = None
    """Size of a server's KV pool, in tokens; default: SGLang's choice, but a small one on a CPU."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a GPU's memory for weights and KV."""
    seeded: bool = False
    """Use the seeds of requests. Slower; needs a GPU (SGLang's deterministic inference)."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `sglang.launch_server`; they win over the other settings."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "SGLangSection":
        """The section of a table. ConfigError names the wrong value."""
        return cls.of_table("engine.sglang", values)


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
