"""The messages between the main process and the engine's process. JSON both ways; no torch."""

from dataclasses import dataclass
from typing import Protocol

from areal_sdk.config import EngineSection
from areal_sdk.engine import GenerateChunk, GenerateRequest
from areal_sdk.process.services import Answer, Bulk, Service, Stream
from areal_sdk.types import WeightUpdate


class LocalOptions(EngineSection):
    """The settings of `[engine]`, and further ones that only this engine gets."""

    kv_memory_gb: float | None = None
    """Gigabytes for keys and values; default: a share of the free memory."""
    deterministic: bool = False
    """`run.deterministic`: batches of one shape, so that outputs are the same bit by bit."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests that an engine holds: each running one has a slot, the others wait for one."""

    running: int
    waiting: int


class ModelCalls(Service, Protocol):
    """Contract of the engine's process."""

    def generate(self, request: GenerateRequest, is_streamed: bool) -> Stream[GenerateChunk]:
        """Sample. The tokens come one by one if `is_streamed`, else all at the end."""

    def abort(self, request_id: str) -> Answer[None]:
        """End a request early; its stream gets what was sampled and a last chunk that says so."""

    def sees(self, path: str) -> Answer[bool]:
        """Whether `path` exists on the machine of the engine."""

    def receive_weights(self, chunk: Bulk, offset: int, size: int) -> Answer[str]:
        """Take a part of a file of `size` bytes. The answer is the path at which the file can be opened."""

    def update_weights(self, update: WeightUpdate) -> Answer[float]:
        """Serve new weights. The answer is the time for which generation was held, in seconds."""

    def pause(self) -> Answer[None]: ...

    def resume(self) -> Answer[None]: ...

    def load(self) -> Answer[EngineLoad]: ...

    def open_entrance(self, host: str, token: str) -> Answer[int]:
        """Listen for clients that know the token. The answer is the port."""
