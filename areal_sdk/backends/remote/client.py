"""The client protocol: the calls by which the pool uses one inference server.

To train on another kind of server, subclass `HttpClient` and `RemoteEngine`; the pool, supervision, swaps, verification
and failover then work on it. A client that can do more than sample and load a directory says so in its `Capabilities`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NoReturn

from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.types import FinishReason

InterruptMode = Literal["retract", "abort", "drain", "in_place"]
"""The effect of a swap on requests in flight.

* `retract`: the server holds them, recomputes their KV under the new weights, and goes on;
* `abort`: the server drops them; prompt and partial output are sent again afterwards;
* `drain`: they end under the old weights first; nothing new starts meanwhile;
* `in_place`: they go on with the KV of the old weights. Their later logprobs match neither version:
  such tokens are counted as `num_stale_kv`.
"""

TransportName = Literal["disk", "tensor", "distributed"]
"""The way by which weights travel: files, shared memory of one host, or a process group."""


class ServerFailedError(EngineError):
    """The server is gone, hangs, or broke: another server may answer the same request."""


class RequestRefusedError(EngineError):
    """The server is well and refused the request, as any other server would."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    connect_s: float = 5.0
    token_s: float = 300.0
    """Maximum seconds between two tokens of a request, queueing and a swap of weights included."""
    control_s: float = 20.0
    """Deadline in seconds of a small control call: pause, continue, version, model information."""
    weights_s: float = 300.0
    """Deadline in seconds of a call that moves weights."""
    probe_s: float = 10.0
    """Deadline in seconds of the one-token request that shows that an idle server is alive."""
    busy_probe_s: float = 60.0
    """Deadline in seconds of a one-token request to a busy server, where a long prefill delays everything else."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a kind of server beyond sampling and loading weights from a directory."""

    interrupts: tuple[InterruptMode, ...] = ("abort", "drain")
    """The effects that a swap may have on requests in flight. `retract` and `in_place` need `pause` and `resume`."""
    transports: tuple[TransportName, ...] = ("disk",)
    """The transports. `tensor` needs `update_from_tensor`, `distributed` needs `join_group`, both `begin_update`."""
    reports_checksums: bool = False
    """Whether `checksums` works: a push is then verified byte by byte, not by the canary prompt alone."""
    lends_memory: bool = False
    """Whether `release_memory` and `resume_memory` work, so that engine and trainer may share a device."""
    stands_behind_router: bool = False
    """Whether `workers`, `add_worker`, `remove_worker` and `speak_for` work on the client of a router."""


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The names and shapes that servers give to the parameters of a checkpoint; sent to the weight sender."""

    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters that a server keeps as one: its name, and the parts in the order of concatenation."""
    vocabulary_multiple: int = 1
    """Number to a multiple of which embeddings are padded with rows of zeros."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's own description, and its observed properties."""

    dtype: str = "auto"
    """Dtype of the weights: `float32`, `bfloat16` or `float16`."""
    max_context: int | None = None
    """Context that the server was started with; None: the context that the model was made for."""
    num_kv_tokens: int = 0
    """Number of tokens that the KV pool of the server holds. A longer request can never run. 0: not known."""
    num_ranks: int = 1
    """Number of processes, each of which holds a part of the weights."""
    has_grammar: bool = False
    """Whether the server can constrain an answer to a JSON schema."""
    hashes_bytes: bool = False
    """Whether checksums are the first 8 bytes of SHA-256 over each parameter, in hexadecimal. Other
    checksums are compared only with earlier checksums of the same server."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One server's part of a request."""

    request: GenerateRequest
    """The request as the user sent it. The server is asked for the part of `max_new_tokens` that `sampled` leaves."""
    sampled: Sequence[int]
    """Output tokens of earlier attempts: the prompt of this one ends with them."""
    request_id: str
    submitted_version: int
    """Version that is served when the request is sent. The servers of a router may serve a newer one."""
    version_of: Callable[[str], int]
    """The version of a label; raises `StaleWeightsError` for a label that this run never gave."""
    cache_key: str | None = None
    """Key that keeps the prefix cache of these weights apart from the caches of other weights; only under `in_place`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The tokens sampled since the last delta, with their versions. An empty delta is a sign of life."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    """The reason of the end, in the last delta. `ABORT`: the server gave the request up after these tokens."""
    stop_matched: str | int | None = None
    num_cached: int = 0
    num_stale_kv: int = 0
    message: str = ""
    """The reason why the server aborted, in the server's words."""

    def chunk(self, *, num_stale_kv: int = 0) -> GenerateChunk:
        return GenerateChunk(
            self.tokens,
            self.logprobs,
            self.versions,
            self.finish_reason,
            self.stop_matched,
            self.num_cached,
            num_stale_kv,
            self.top_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """Logprobs of candidates for the next token after a prompt, at T = 1."""

    logprobs: Mapping[int, float]
    num_cached: int = 0
    """Number of prompt tokens whose KV was reused."""


class ServerClient(ABC):
    """One server. Every call has a deadline and fails with an `EngineError`: `ServerFailedError` if another server
    may do better, `RequestRefusedError` if none would. Labels name weights. A server gets its label with the weights
    and loses it when it ends. A label that this run did not give shows that somebody else restarted the server."""

    kind: ClassVar[str] = "inference"
    """Kind of server, for messages: "the SGLang server of ..."."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    layout: ClassVar[WeightLayout] = WeightLayout()
    reserved_tokens: ClassVar[int] = 0
    """Tokens of the context that a server keeps to itself."""

    def __init__(self, address: str, *, deadlines: Deadlines | None = None) -> None:
        self.address = address.rstrip("/")
        self.deadlines = deadlines or Deadlines()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    # sampling

    @abstractmethod
    async def probe(self, *, is_busy: bool = False) -> None:
        """Sample one token, or raise. A server is alive when its sampler is."""

    @abstractmethod
    async def inspect(self, model: Path) -> ServerInfo:
        """Ask the server for its properties. Raises, with the cure, if a run cannot train with it."""

    @abstractmethod
    def generate(self, attempt: Attempt) -> AsyncGenerator[Delta, None]:
        """Sample, delta by delta; the last delta has a finish reason. Closing the generator early makes
        the server drop the request. Logprobs are log softmax(logits / T) over the full vocabulary."""

    @abstractmethod
    async def score(
        self, tokens: Sequence[int], candidates: Sequence[int], *, cache_key: str | None = None
    ) -> Scores:
        """Logprobs of `candidates` after `tokens`, computed with the weights served now."""

    @abstractmethod
    async def abort_all(self) -> None:
        """End all requests; their streams end with `FinishReason.ABORT`."""

    @abstractmethod
    def abandon(self) -> None:
        """Close every open stream, so that readers see a failure at once and not after a deadline."""

    def explain_refusal(self, request: GenerateRequest, error: RequestRefusedError) -> EngineError:
        """The error that the user gets if the server refused `request`."""
        return EngineError(str(error))

    # weights

    @abstractmethod
    async def weight_label(self) -> str:
        """The label of the weights served now."""

    @abstractmethod
    async def set_label(self, label: str) -> None:
        """Name the weights the server holds; requests in flight go on."""

    @abstractmethod
    async def update_from_disk(self, directory: str, *, label: str, flush: bool) -> None:
        """Load the safetensors of `directory`, drop the prefix cache if `flush`, set the label."""

    async def pause(self, mode: str) -> None:
        """Hold requests in flight. `mode`: the effect of the swap on them, `retract` or `in_place`."""
        self._cannot("pause")

    async def resume(self) -> None:  # noqa: B027 - nothing to undo without `pause`
        """End a pause. On a server that is not paused this does nothing."""

    async def checksums(self) -> dict[str, str]:
        """A hash of each parameter as the server holds it."""
        self._cannot("tell checksums")

    async def begin_update(self) -> None:
        self._cannot("take weights from memory")

    async def end_update(self) -> None:
        self._cannot("take weights from memory")

    async def update_from_tensor(
        self, payloads: Sequence[str], *, label: str | None, flush: bool
    ) -> None:
        """Load one bucket through handles of shared memory, one a rank."""
        self._cannot("take weights from shared memory")

    async def join_group(
        self, *, host: str, port: int, world_size: int, group: str, backend: str
    ) -> None:
        """Join a process group as ranks 1 and up; the weight sender is rank 0."""
        self._cannot("join a process group")

    async def update_from_group(
        self,
        parameters: Sequence[tuple[str, str, Sequence[int]]],
        *,
        group: str,
        label: str | None,
        flush: bool,
    ) -> None:
        """Receive one broadcast bucket of `(name, dtype, shape)`s."""
        self._cannot("take weights from a process group")

    # memory

    async def release_memory(self) -> None:
        """Give weights and KV away once the last request has left."""
        self._cannot("lend its memory")

    async def resume_memory(self) -> None:
        self._cannot("lend its memory")

    # of a router

    async def workers(self) -> dict[str, str]:
        """Ids of the servers registered with this router, by address."""
        self._cannot("route requests")

    async def add_worker(self, address: str) -> None:
        """Queue a server for registration. It is registered once it has answered the router."""
        self._cannot("route requests")

    async def remove_worker(self, worker_id: str) -> None:
        self._cannot("route requests")

    def speak_for(self, clients: Sequence["ServerClient"]) -> None:
        """Read streams in the same way as `clients`, the servers behind this router."""
        self._cannot("route requests")

    def _cannot(self, act: str) -> NoReturn:
        raise EngineError(f"{self.address}: {type(self).__name__} cannot {act}")


async def wait_until_ready(
    client: ServerClient, *, timeout_s: float, is_running: Callable[[], bool] = lambda: True
) -> None:
    """Return once the server samples. `ServerFailedError` if it dies or is not in time."""
    last: EngineError | None = None
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at:
        if not is_running():
            raise ServerFailedError(f"the {client.kind} server of {client.address} died at start")
        try:
            await client.probe()
        except EngineError as exc:
            last = exc
        else:
            return
        await asyncio.sleep(0.25)
    raise ServerFailedError(
        f"{client.address} was not ready within {timeout_s:g} s (start_timeout_s); last: {last}"
    )
