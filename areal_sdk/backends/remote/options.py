"""The settings of a remote engine that every kind of server has, and the engine's limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from areal_sdk.backends.remote.client import Capabilities, Deadlines, InterruptMode, TransportName
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.backends.remote.weights.sender import WeightSender
from areal_sdk.backends.remote.weights.transport import (
    DiskTransport,
    DistributedTransport,
    TensorTransport,
    Transport,
)
from areal_sdk.config import EngineSection, Seconds, Section, explain
from areal_sdk.errors import ConfigError, EngineError


class RemoteSection(Section):
    """Settings of `[engine.NAME]` for servers of every kind; each kind adds its own."""

    transport: TransportName = "disk"
    """Way of new weights to the servers: files, shared memory of one host, or a process group."""
    interrupt: Literal["retract", "abort", "drain"] = "retract"
    """Treatment of requests in flight at a swap of weights; `engine.kv_on_update = "keep"` overrides it."""
    group_backend: Literal["gloo", "nccl"] = "gloo"
    """Backend of the process group, for the distributed transport."""
    group_host: str = "127.0.0.1"
    """Address of this machine as the servers reach it, for the distributed transport."""
    router: str | None = None
    """Address of a router that runs without servers. Requests go through the router; the engine registers
    the servers there. Default: the engine itself places a session where its prefix is cached."""
    colocated: bool = False
    """Engine and trainer share a device: servers hold generation and lend their memory to each
    training step. Servers must leave room for what the trainer keeps between steps."""
    api_key: str | None = Field(default=None, repr=False)
    """API key of the servers, if they need one."""
    request_wait_s: Seconds = 120.0
    """Maximum time that a request waits while no server is ready. While the engine starts a server again, requests wait
    as long as the start may take."""
    start_timeout_s: Seconds = 600.0
    """Maximum time from the start of a server to its first token. A large model on a slow disk takes minutes."""

    @classmethod
    def of_table(cls, name: str, values: Mapping[str, Any]) -> Self:
        """The section of a table of settings. ConfigError names the wrong value."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as exc:
            raise ConfigError(f"{name}: {explain(exc, cls)}") from None

    def interrupt_mode(self, engine: EngineSection) -> InterruptMode:
        """The treatment of requests in flight during a swap; `engine.kv_on_update` counts too."""
        return "in_place" if engine.kv_on_update == "keep" else self.interrupt

    def check(self, engine: EngineSection, *, kind: str, capabilities: Capabilities) -> None:
        """Raise EngineError for a setting that this kind of server does not support."""
        interrupt = self.interrupt_mode(engine)
        if self.router is not None and interrupt != "retract":
            raise EngineError(
                f"interrupt = {interrupt!r} does not work behind a router, which hides the server of each "
                'request: use interrupt = "retract"'
            )
        for name, chosen, known in (
            ("transport", self.transport, capabilities.transports),
            ("interrupt", interrupt, capabilities.interrupts),
        ):
            if chosen not in known:
                raise EngineError(
                    f"{name} = {chosen!r}: {kind} servers cannot do that; choose one of "
                    f"{', '.join(known)}"
                )
        if self.colocated and not capabilities.lends_memory:
            raise EngineError(
                f"{kind} servers cannot lend their memory to the trainer: leave colocated out"
            )
        if self.router is not None and not capabilities.stands_behind_router:
            raise EngineError(f"{kind} servers cannot stand behind a router: leave router out")

    def transport_of(self, sender: WeightSender, disk: DiskTransport) -> Transport:
        if self.transport == "tensor":
            return TensorTransport(sender)
        if self.transport == "distributed":
            return DistributedTransport(sender, host=self.group_host, backend=self.group_backend)
        return disk


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Waits and numbers of attempts of a remote engine. The defaults are the recommendation."""

    max_failovers: int = 4
    """Number of faults of servers that one request may survive. The next fault ends it in an `EngineError`."""
    drain_timeout_s: float = 600.0
    connect_timeout_s: float = 60.0
    """Seconds to connect to servers that run already."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    supervision: SupervisionOptions = field(default_factory=SupervisionOptions)
