"""Requests to the engine's process, from the main process and from rollout nodes."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from areal_sdk.backends.local.protocol import ModelCalls
from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest
from areal_sdk.errors import (
    ContextOverflowError,
    EngineError,
    ProcessError,
    RemoteError,
    UnsupportedSchemaError,
    require_package,
)
from areal_sdk.process import Child
from areal_sdk.process.services import StreamClient

IDLE_TIMEOUT_S = 120.0
"""Seconds of silence after which a stream counts as broken. The worker sends something to every open stream every few
seconds."""

LEAST_TEMPERATURE = 1e-20
LARGEST_SHIFT = 1e6
"""Largest shift of a logit, and largest factor on it. Beyond these float32 overflows. A row without
a distribution ends every request of its batch, because it cannot be told from broken weights."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Asks one engine process for tokens."""

    child: Child
    info: EngineInfo
    deterministic: bool

    async def chunks(
        self, request: GenerateRequest, *, is_streamed: bool
    ) -> AsyncGenerator[GenerateChunk, None]:
        """The parts of an answer. Without `is_streamed` it is one part, which is cheaper."""
        check(request, self.info, deterministic=self.deterministic)
        calls = StreamClient[ModelCalls](self.child)
        with engine_errors():
            parts = calls.stream(
                ModelCalls.generate, request, is_streamed, idle_timeout_s=IDLE_TIMEOUT_S
            )
            async with aclosing(parts):
                async for chunk in parts:
                    if chunk.tokens or chunk.finish_reason is not None:  # else: "still alive"
                        yield chunk


def check(request: GenerateRequest, info: EngineInfo, *, deterministic: bool) -> None:
    """Refuse a request that the worker of such an engine could not serve, and name the cure."""
    sampling = request.sampling
    if len(request.tokens) >= info.max_context:
        raise ContextOverflowError(prompt_tokens=len(request.tokens), max_context=info.max_context)
    info.check_tokens(request)
    is_known = sampling.temperature == 0 or sampling.temperature >= LEAST_TEMPERATURE
    if not is_known or not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1:
        raise EngineError(
            f"temperature {sampling.temperature}, top_p {sampling.top_p}, min_p {sampling.min_p}: "
            f"expected temperature 0 or at least {LEAST_TEMPERATURE}, 0 < top_p <= 1, "
            "0 <= min_p <= 1"
        )
    if not 1 / LARGEST_SHIFT <= sampling.repetition_penalty <= LARGEST_SHIFT:
        raise EngineError(
            f"repetition_penalty {sampling.repetition_penalty}: "
            f"expected {1 / LARGEST_SHIFT:g} to {LARGEST_SHIFT:g}"
        )
    shifts = (sampling.presence_penalty, sampling.frequency_penalty, *sampling.logit_bias.values())
    if not all(abs(shift) <= LARGEST_SHIFT for shift in shifts):
        raise EngineError(
            "presence_penalty, frequency_penalty and logit_bias: expected numbers between "
            f"{-LARGEST_SHIFT:g} and {LARGEST_SHIFT:g}"
        )
    if request.json_schema is not None:
        require_package("llguidance", extra="train", needed_for="JSON output")
    if deterministic and sampling.temperature > 0 and request.seed is None:
        raise EngineError("a deterministic engine needs a seed in every sampled request")


_RAISED_BY_WORKER = {kind.__name__: kind for kind in (EngineError, UnsupportedSchemaError)}


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn faults of processes into EngineError, which is what they are to the caller."""
    try:
        yield
    except RemoteError as exc:
        if error := _RAISED_BY_WORKER.get(exc.kind):
            raise error(exc.message) from exc
        raise EngineError(str(exc)) from exc
    except ProcessError as exc:
        raise EngineError(str(exc)) from exc
