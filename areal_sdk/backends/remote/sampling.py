"""One request over the servers of a pool: placed, sampled, and continued elsewhere after a fault."""

import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from areal_sdk.backends.remote.client import (
    Attempt,
    Delta,
    InterruptMode,
    RequestRefusedError,
    ServerFailedError,
)
from areal_sdk.backends.remote.failover import ResumableRequest, fitted
from areal_sdk.backends.remote.server_pool import Pool, Server
from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest
from areal_sdk.errors import EngineError, StaleWeightsError
from areal_sdk.types import FinishReason

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass
class PoolSampler:
    """Samples from the servers of a pool. The main process's engine has one, and so has each rollout node."""

    pool: Pool
    info: EngineInfo
    model: Path
    mode: InterruptMode
    reserved_tokens: int
    max_failovers: int
    wait_s: float
    """Seconds that a request waits while no server is ready."""
    label: Callable[[int], str]
    """The label of a version."""
    version_of: Callable[[str], int]
    suspect: Callable[[Server, EngineError], Awaitable[None]]
    """Function that is called if a request met a fault at a server."""
    name: str = ""
    """Part of the ids of requests, since several processes send requests."""
    num_failovers: int = 0
    """Number of attempts that a fault or a swap of weights ended, so that the request went on with another attempt."""
    _request_ids: "itertools.count[int]" = field(default_factory=itertools.count)

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        resumable = ResumableRequest(
            fitted(request, self.info, reserved_tokens=self.reserved_tokens), self.decode
        )
        num_faults = 0
        while True:
            server = await self.pool.acquire(request.session, timeout_s=self.wait_s)
            resumable.begin_attempt()
            server.began()
            final: Delta | None = None
            try:
                async with aclosing(self._attempt(server, resumable)) as deltas:
                    async for delta in deltas:
                        if delta.finish_reason is None:
                            yield delta.chunk()
                        else:
                            final = delta
            except RequestRefusedError as exc:
                raise server.client.explain_refusal(request, exc) from exc
            except (ServerFailedError, StaleWeightsError) as exc:
                num_faults += 1
                await self.suspect(server, exc)
                if num_faults > self.max_failovers:
                    raise EngineError(
                        f"gave up after {num_faults} faults, the last: {exc}"
                    ) from exc
            finally:
                server.ended()
            if final is not None and final.finish_reason is not FinishReason.ABORT:
                yield final.chunk(num_stale_kv=resumable.num_stale_kv)
                return
            if final is not None and final.tokens:  # we aborted it ourselves, for a swap
                yield replace(final, finish_reason=None).chunk()
            if resumable.budget == 0:
                yield Delta(finish_reason=FinishReason.LENGTH).chunk()
                return
            if request.json_schema is not None and resumable.sampled:
                raise EngineError(
                    "new weights or a fault interrupted an answer with a JSON schema, and such an answer "
                    'cannot be continued: interrupt = "retract" keeps new weights from interrupting it'
                )
            self.num_failovers += 1

    async def _attempt(
        self, server: Server, resumable: ResumableRequest
    ) -> AsyncGenerator[Delta, None]:
        """One server's part of a request, which ends after a final delta, `ABORT` included."""
        keeps_kv = self.mode == "in_place"
        attempt = Attempt(
            resumable.request,
            resumable.sampled,
            f"{resumable.request.request_id or 'areal'}-{self.name}{next(self._request_ids)}",
            submitted_version=self.pool.least_version(server),
            version_of=self.version_of,
            cache_key=self.label(server.version) if keeps_kv else None,
        )
        async with aclosing(server.client.generate(attempt)) as deltas:
            async for delta in deltas:
                server.last_token_at = time.monotonic()
                if not delta.tokens and delta.finish_reason is None:
                    continue
                delta = resumable.add(delta)
                if delta.finish_reason is FinishReason.ABORT and not server.is_interrupting:
                    if delta.tokens:
                        yield replace(delta, finish_reason=None)
                    raise ServerFailedError(f"{server.address} aborted a request: {delta.message}")
                yield delta
                if delta.finish_reason is not None:
                    return
        raise ServerFailedError(f"{server.address} ended a request without a reason")

    def decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.model / "tokenizer.json"))
