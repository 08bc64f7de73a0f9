"""The one path from a request to a recorded turn, used by every wire format and by `Session.generate`."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager

from areal_sdk.engine import GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.errors import (
    ContextOverflowError,
    EngineError,
    ProcessError,
    UnsupportedSchemaError,
)
from areal_sdk.gateway.errors import (
    CONTEXT_OVERFLOW,
    ApiError,
    bad_request,
    context_overflow,
)
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.sampling.deadline import Deadline
from areal_sdk.gateway.sampling.model_names import Arms, ModelNames
from areal_sdk.gateway.sampling.prompts import PromptBuilder
from areal_sdk.gateway.sampling.reader import (
    Completed,
    CompletionReader,
    Delta,
    Prepared,
    engine_fault,
)
from areal_sdk.gateway.sampling.request import ChatRequest
from areal_sdk.gateway.sessions.replies import RecordAbandoned
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.untrusted import LargeWork, most_values
from areal_sdk.types import FinishReason, Turn

logger = logging.getLogger(__name__)

_MAX_ANNOUNCED = 100
_LONGEST_SHOWN = 100
"""Maximum number of characters of a client's value in a notice."""

OnAbandoned = Callable[[RecordAbandoned], None]
"""Takes the function that records an unfinished completion as a turn, after its client left."""


class Completer:
    """Samples requests and records them as turns."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: Tokenizer,
        renderer: Renderer,
        *,
        max_request_s: float,
        names: Mapping[str, Arms] | None = None,
    ) -> None:
        """`names` are further names of policies, and names that several policies share."""
        self.tokenizer = tokenizer
        self.renderer = renderer
        self._engine = engine
        self._max_request_s = max_request_s
        self.names = ModelNames(lambda: self.policies, names)
        self.large = LargeWork()
        self._prompts = PromptBuilder(
            tokenizer, renderer, self.large, max_context=lambda: self.max_context
        )
        self._announced: set[str] = set()
        self.metrics = GatewayMetrics()

    @property
    def max_context(self) -> int:
        return self._engine.info.max_context

    @property
    def most_values(self) -> int:
        """The largest number of values in the JSON of one request."""
        return most_values(self.max_context)

    async def complete(self, session: Session, request: ChatRequest) -> Turn:
        """Sample and record one turn."""
        prepared = await self.prepare(session, request)
        with session.notes.noting_faults():
            async with aclosing(self.run(session, prepared)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Completed):
                        return delta.turn
        raise AssertionError("a completion ends with Completed or an error")

    def close(self) -> None:
        """Begin no more large requests."""
        self.large.close()

    async def count(
        self, session: Session, request: ChatRequest, *, num_bytes: int | None = None
    ) -> int:
        """The number of prompt tokens that the request would have in this session."""
        placed = await self._prompts.prepare_messages(
            session, request, num_bytes, num_bytes, is_counted=True
        )
        return len(placed.prompt.tokens)

    async def prepare(
        self,
        session: Session,
        request: ChatRequest,
        *,
        num_bytes: int | None = None,
        num_new: int | None = None,
    ) -> Prepared:
        """Place the request in the session's tree and render its prompt; raise if it cannot be rendered.

        `num_bytes` is the size of the request's body, if it had one. `num_new` is the size of the part that no earlier
        request had; None where that part is small.
        """
        allowed = session.admit()
        self.names.check(request.policy)
        if request.json_schema is not None and not self._engine.info.constrains_json:
            raise bad_request(
                f"this engine cannot constrain its output to JSON: leave {request.schema_field} out",
                param=request.schema_field,
            )
        self._check_biases(request)
        try:
            placed = await self._prompts.prepare(session, request, num_bytes, num_new)
            num_prompt = len(placed.prompt.tokens)
            room = self.max_context - num_prompt
            if room <= 0:
                raise context_overflow(prompt_tokens=num_prompt, max_context=self.max_context)
        except ApiError as exc:
            if exc.code == CONTEXT_OVERFLOW:
                session.cut_short()
            raise
        asked = request.max_new_tokens
        limit = room if allowed is None else min(room, allowed)
        self._announce_overrides(session, request)
        return placed.sampled_by(
            session.sampling.decide(request.sampling),
            max_new_tokens=limit if asked is None else min(asked, limit),
            client_chose_length=asked is not None and asked <= limit,
        )

    @property
    def policies(self) -> Mapping[str, bool]:
        """Policies that a request may name as its model -> whether each is trained; empty without `[policy.NAME]`."""
        return self._engine.info.policies

    def _check_biases(self, request: ChatRequest) -> None:
        num_tokens = self._engine.info.vocab_size
        largest = max(request.sampling.get("logit_bias") or (0,))
        if largest >= num_tokens:
            raise bad_request(
                f"logit_bias holds token {largest}, and this model has {num_tokens}: the ids of another model's "
                "tokenizer are other words here",
                param="logit_bias",
                code="invalid_value",
            )

    def _announce_overrides(self, session: Session, request: ChatRequest) -> None:
        """Log each sampling value that a client asks for and the session replaces, once."""
        fixed = "this session's sampling is fixed by the run"
        replaced = session.sampling.overridden(request.sampling)
        notices = [
            f"{name}={repr(value)[:_LONGEST_SHOWN]} was replaced: {fixed}"
            for name, value in replaced.items()
        ]
        if request.seed is not None and not session.sampling.keeps_seeds:
            notices.append(f"seed was left out: {fixed}")
        for notice in notices:
            session.notes.notice(notice)
            if notice not in self._announced and len(self._announced) < _MAX_ANNOUNCED:
                self._announced.add(notice)
                logger.warning("%s (rollout.sampling = 'override')", notice)

    async def run(
        self, session: Session, prepared: Prepared, *, left: OnAbandoned | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Sample one completion. Closing this generator early frees the engine's slot.

        With `left` it streams: deltas come as they are sampled. If the consumer goes, or the session ends, after some
        deltas came, `left` gets a function that adds them to the session as a turn. Without `left` everything is read
        at the end, which is cheaper, and an unfinished completion leaves nothing.
        """
        reader = self._reader(session, prepared, streams=left is not None)
        begun = time.monotonic()
        latest = -math.inf  # nothing came yet
        recall = session.recall
        asked = self._engine_request(session, prepared)
        known = None if recall is None else recall.answer(asked)

        def record(completed: Completed) -> int:
            if known is None:  # else it was sampled before the run stopped
                self.metrics.observe(completed.turn, num_cached=completed.num_cached)
            return completed.index

        def leave() -> None:
            if left is not None and reader.has_tokens:
                duration_s = time.monotonic() - begun
                left(lambda: record(reader.record_left(duration_s)))

        if known is not None:
            stream = _only(known)
        else:
            stream = self._engine.stream(asked) if prepared.max_new_tokens else _only(_CUT)
        self.metrics.num_running += 1
        try:
            with self._client_errors(session, schema_field=prepared.request.schema_field):
                try:
                    with (
                        Deadline(self._max_request_s) as deadline,
                        session.sampling_until(deadline.expire, leave=leave),
                    ):
                        while not reader.is_done:
                            if deadline.must_wait:
                                deadline.wait()
                            chunk = await anext(stream)
                            latest = time.monotonic()
                            if not reader.has_tokens:
                                reader.first_token_s = latest - begun
                            if deltas := reader.read(chunk):
                                deadline.rest()
                                for delta in deltas:
                                    yield delta
                except TimeoutError:
                    is_alive = time.monotonic() - latest < self._max_request_s / 2
                    if session.is_closed or not (is_alive and _is_unlimited(session, prepared)):
                        raise
                    for delta in reader.read(_CUT):
                        yield delta
            completed = reader.record(time.monotonic() - begun)
        except (GeneratorExit, asyncio.CancelledError):
            leave()
            raise
        finally:
            self.metrics.num_running -= 1
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        record(completed)
        if recall is not None:
            recall.keep(
                asked,
                completed.turn,
                completed.index,
                stop_matched=completed.stop_matched,
                top_logprobs=reader.top_logprobs,
            )
        yield completed

    def _reader(self, session: Session, prepared: Prepared, *, streams: bool) -> CompletionReader:
        is_frozen = not self.policies.get(prepared.request.policy, True)
        return CompletionReader(
            self.tokenizer, self.renderer, session, prepared, streams=streams, is_frozen=is_frozen
        )

    def _engine_request(self, session: Session, prepared: Prepared) -> GenerateRequest:
        request = prepared.request
        # Nothing is drawn for a request without tokens: it leaves the seeds of others alone.
        seed = session.next_seed() if prepared.max_new_tokens else None
        if seed is None and session.sampling.keeps_seeds:
            seed = request.seed
        return GenerateRequest(
            tokens=prepared.prompt.tokens,
            max_new_tokens=prepared.max_new_tokens,
            sampling=prepared.sampling,
            stop=request.stop,
            stop_tokens=request.stop_tokens,
            seed=seed,
            num_top_logprobs=request.num_top_logprobs,
            json_schema=request.json_schema,
            policy=request.policy,
            session=session.id,
            request_id=secrets.token_hex(8),
        )

    @contextmanager
    def _client_errors(self, session: Session, *, schema_field: str) -> Iterator[None]:
        """Turn errors of the engine into errors for the client."""
        try:
            yield
        except ContextOverflowError as exc:
            session.cut_short()
            raise context_overflow(
                prompt_tokens=exc.prompt_tokens, max_context=exc.max_context
            ) from exc
        except TimeoutError as exc:
            if session.is_closed:
                raise session.refusal() from exc
            fault = f"the engine did not finish within {self._max_request_s:g} s"
            raise engine_fault(fault, status=504, code="engine_timeout") from exc
        except StopAsyncIteration as exc:
            fault = "the engine ended its stream without a finish reason"
            raise engine_fault(fault) from exc
        except UnsupportedSchemaError as exc:
            raise bad_request(
                f"the output cannot be held to this JSON schema: {exc}", param=schema_field
            ) from exc
        except (EngineError, ProcessError) as exc:
            raise engine_fault(f"the engine failed: {exc}") from exc


def _is_unlimited(session: Session, prepared: Prepared) -> bool:
    """Whether neither the client nor the session limits the answer's length: only the deadline does."""
    return session.limits.max_new_tokens is None and prepared.request.max_new_tokens is None


_CUT = GenerateChunk((), (), (), FinishReason.LENGTH)
"""The last chunk of an answer that goes on until its time is over. This is an outcome and no fault of the engine."""


async def _only(chunk: GenerateChunk) -> AsyncIterator[GenerateChunk]:
    """The stream of an answer that needs no engine: a recorded answer, or that to a request for no tokens."""
    yield chunk
