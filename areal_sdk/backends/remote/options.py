"""How a remote engine uses its servers."""

from dataclasses import dataclass, field

from areal_sdk.backends.remote.client import Capabilities, Deadlines, InterruptMode, TransportName
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.backends.remote.transport import (
    DiskTransport,
    DistributedTransport,
    TensorTransport,
    Transport,
    WeightSender,
)
from areal_sdk.errors import EngineError


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The defaults are the recommendation."""

    transport: TransportName = "disk"
    interrupt: InterruptMode = "retract"
    max_failovers: int = 4
    """Servers one request may lose before it ends in an `EngineError`."""
    no_server_timeout_s: float = 120.0
    """How long a request waits for any server to be ready."""
    drain_timeout_s: float = 600.0
    connect_timeout_s: float = 60.0
    """For servers that run already."""
    backend: str = "gloo"
    """Of the `distributed` transport: `gloo` on CPU, `nccl` on CUDA."""
    host: str = "127.0.0.1"
    """Where servers reach the weight sender (`distributed`)."""
    router: str | None = None
    """Address of a router that requests go through; the engine registers its servers there."""
    colocated: bool = False
    """The trainer computes on the servers' devices: they lend it their memory for its steps."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    supervision: SupervisionOptions = field(default_factory=SupervisionOptions)

    def __post_init__(self) -> None:
        if self.router is not None and self.interrupt != "retract":
            raise EngineError(
                f"a router does not say where a request runs, so that a swap cannot {self.interrupt} "
                'those of one server: use interrupt = "retract"'
            )

    def check(self, kind: str, capabilities: Capabilities) -> None:
        """EngineError for an option that servers of this kind cannot keep."""
        for name, chosen, known in (
            ("transport", self.transport, capabilities.transports),
            ("interrupt", self.interrupt, capabilities.interrupts),
        ):
            if chosen not in known:
                raise EngineError(
                    f"{name} = {chosen!r} is nothing that {kind} servers can do; choose one of "
                    f"{', '.join(known)}"
                )
        if self.colocated and not capabilities.lends_memory:
            raise EngineError(f"colocated: {kind} servers cannot lend their memory to the trainer")
        if self.router is not None and not capabilities.stands_behind_router:
            raise EngineError(f"router: there is no client for a router of {kind} servers")

    def transport_of(self, sender: WeightSender, disk: DiskTransport) -> Transport:
        if self.transport == "tensor":
            return TensorTransport(sender)
        if self.transport == "distributed":
            return DistributedTransport(sender, host=self.host, backend=self.backend)
        return disk
