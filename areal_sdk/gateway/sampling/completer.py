"""The one path from a request to a recorded turn, used by every wire format and the token door."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

import orjson

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
    TemplateRefusalError,
    bad_request,
    context_overflow,
    session_closed,
)
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.sampling.deadline import Deadline
from areal_sdk.gateway.sampling.reader import (
    Completed,
    CompletionReader,
    Delta,
    Prepared,
    engine_fault,
)
from areal_sdk.gateway.sampling.request import ChatRequest, Cut, ToolUse, cuts_of
from areal_sdk.gateway.sessions.history import Placement
from areal_sdk.gateway.sessions.replies import RecordAbandoned
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.renderer import Prompt, Renderer, TemplateInput
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.untrusted import LARGE, LargeWork
from areal_sdk.types import FinishReason, ForkReason, Message, Tool, Turn

logger = logging.getLogger(__name__)

_MAX_ANNOUNCED = 100
_LONGEST_SHOWN = 100
"""Characters of a client's value in a notice."""

_LEFT_OUT = "the oldest messages were left out: the client asked for truncation"

OnAbandoned = Callable[[RecordAbandoned], None]
"""Takes what would make a turn of a completion whose client left in its midst."""


class Completer:
    """Turns requests into turns."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: Tokenizer,
        renderer: Renderer,
        *,
        max_request_s: float,
    ) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self._engine = engine
        self._max_request_s = max_request_s
        self.large = LargeWork()
        self._announced: set[str] = set()
        self.metrics = GatewayMetrics()

    @property
    def max_context(self) -> int:
        return self._engine.info.max_context

    async def complete(self, session: Session, request: ChatRequest) -> Turn:
        """Sample and record one turn."""
        prepared = await self.prepare(session, request)
        with session.noting_faults():
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
        """Prompt tokens that the request would have in this session."""
        placed = await self._place_messages(session, request, num_bytes, num_bytes)
        return len(placed.prompt.tokens)

    async def prepare(
        self,
        session: Session,
        request: ChatRequest,
        *,
        num_bytes: int | None = None,
        num_new: int | None = None,
    ) -> Prepared:
        """Place the request in the session's tree and render its prompt; refuse what cannot be.

        `num_bytes`: of the body that it came in, if any; `num_new` of them are not known from before.
        """
        allowed = session.admit()
        if request.json_schema is not None and not self._engine.info.constrains_json:
            raise bad_request(
                f"this engine cannot constrain its output to JSON: leave {request.schema_field} out",
                param=request.schema_field,
            )
        try:
            placed = await self._place(session, request, num_bytes, num_new)
            num_prompt = len(placed.prompt.tokens)
            room = self.max_context - num_prompt
            if room <= 0:
                raise context_overflow(prompt_tokens=num_prompt, max_context=self.max_context)
        except ApiError as exc:
            session.truncated = session.truncated or exc.code == CONTEXT_OVERFLOW
            raise
        asked = request.max_new_tokens
        limit = room if allowed is None else min(room, allowed)
        self._announce_overrides(session, request)
        return replace(
            placed,
            max_new_tokens=limit if asked is None else min(asked, limit),
            client_chose_length=asked is not None and asked <= limit,
            sampling=session.sampling.decide(request.sampling),
        )

    async def _place(
        self, session: Session, request: ChatRequest, num_bytes: int | None, num_new: int | None
    ) -> Prepared:
        if request.prompt_text is not None:
            text = request.prompt_text
            self._check_length(session, len(text), param="prompt")
            tokens = await self.large.run(len(text), lambda: self.tokenizer.encode_document(text))
            if not tokens:
                raise bad_request("prompt is empty: send at least one token", param="prompt")
            request = replace(request, prompt_tokens=tokens, prompt_text=None)
            return self._place_tokens(session, request, tokens)
        if request.prompt_tokens is not None:
            return self._place_tokens(session, request, request.prompt_tokens)
        if request.drops_oldest and (cuts := cuts_of(request.messages)):
            return await self._place_latest(session, request, cuts, num_bytes, num_new)
        return await self._place_messages(session, request, num_bytes, num_new)

    async def _place_latest(
        self,
        session: Session,
        request: ChatRequest,
        cuts: Sequence[Cut],
        num_bytes: int | None,
        num_new: int | None,
    ) -> Prepared:
        """The longest end of the conversation that leaves room for an answer, in few attempts."""

        async def place(asked: ChatRequest) -> Prepared | None:
            try:
                placed = await self._place_messages(session, asked, num_bytes, num_new)
            except ApiError as exc:
                if exc.code != CONTEXT_OVERFLOW:
                    raise
                return None
            return placed if len(placed.prompt.tokens) < self.max_context else None

        if (fits := await place(request)) is not None:
            return fits
        low, high, step = 0, len(cuts) - 1, 0
        while low < high:
            number = min(low + step, (low + high) // 2)
            placed = await place(cuts[number].of(request))
            if placed is None:
                low, step = number + 1, 2 * step + 1
            else:
                high, fits = number, placed
        session.notice(_LEFT_OUT)
        if fits is not None:
            return fits
        return await self._place_messages(session, cuts[high].of(request), num_bytes, num_new)

    def _least_tokens(self, request: ChatRequest, num_bytes: int | None) -> int:
        """Tokens that the prompt has at least, by the characters and the number of its messages.

        A template may trim their texts, and leave the thoughts of an assistant out.
        """
        messages, most = request.messages, self.tokenizer.most_characters_a_token
        is_short = most is None or (num_bytes is not None and num_bytes <= most * self.max_context)
        if is_short or len(messages) > self.max_context:
            return len(messages)
        assert most is not None, "it is not short"
        said = (text.rpartition("</think>")[2] for m in messages for text in _texts(m))
        num_characters = sum(len(text.strip()) for text in said)
        return max(len(messages), -(-num_characters // most))

    def _check_length(self, session: Session, num_characters: int, *, param: str) -> None:
        most = self.tokenizer.most_characters_a_token
        least = 0 if most is None else -(-num_characters // most)
        if least > self.max_context:
            raise context_overflow(
                prompt_tokens=least, max_context=self.max_context, at_least=True, param=param
            )

    async def _place_messages(
        self, session: Session, request: ChatRequest, num_bytes: int | None, num_new: int | None
    ) -> Prepared:
        least = await self.large.run(num_new or 0, lambda: self._least_tokens(request, num_bytes))
        if least > self.max_context:
            raise context_overflow(prompt_tokens=least, max_context=self.max_context, at_least=True)
        tools, options, history = request.tools, request.template_options, session.history

        def place() -> tuple[tuple[Message, ...], Placement]:
            messages = history.canonical(request.messages, splits_reasoning=self.renderer.reasons)
            return messages, history.place(messages, tools=tools, options=options)

        async with session.placing:
            messages, placement = await self.large.run(num_new or 0, place)
        opening = self._opening(session, request)
        chat = TemplateInput(messages, self._tools_to_render(request), options)
        if placement.parent is None:
            prompt = await self._first(chat, opening, num_bytes)
            return Prepared(request, prompt, placement, new_messages=messages, opening=opening)
        turn = session.turns[placement.parent]
        known = placement.num_matched
        last_token = (turn.output_tokens or turn.prompt_tokens)[-1]
        size = sum(map(_num_characters, messages[known:]))
        try:
            added = await self.large.run(
                size,
                lambda: self.renderer.addition(
                    last_token, chat, known, opening=opening, apart=size > LARGE
                ),
            )
        except TemplateRefusalError:
            unstable = replace(placement, parent=None, num_matched=0)
            prompt = await self._first(chat, opening, num_bytes)
            fork = ForkReason.TEMPLATE_UNSTABLE
            return Prepared(request, prompt, unstable, fork, new_messages=messages, opening=opening)
        return Prepared(
            request,
            Prompt(session.tokens_of(placement.parent) + added.tokens, added.opens_reasoning),
            placement,
            parent=placement.parent,
            new_messages=messages[known:],
            opening=opening,
        )

    async def _first(self, chat: TemplateInput, opening: str, num_bytes: int | None) -> Prompt:
        size = num_bytes
        if size is None:
            size = sum(map(_num_characters, chat.messages)) + len(orjson.dumps(chat.tools))
        try:
            return await self.large.run(
                size, lambda: self.renderer.first(chat, opening=opening, apart=size > LARGE)
            )
        except TemplateRefusalError as exc:
            raise bad_request(
                f"the model's chat template does not accept these messages: {exc}", param="messages"
            ) from exc

    def _tools_to_render(self, request: ChatRequest) -> tuple[Tool, ...]:
        if self.renderer.weaves_tools and request.tool_choice.use is ToolUse.NONE:
            return ()
        return request.tools

    def _opening(self, session: Session, request: ChatRequest) -> str:
        """How the answer begins when the client wrote that, or demands a tool call."""
        if request.prefill:
            return request.prefill
        if request.tool_choice.use is not ToolUse.REQUIRED:
            return ""
        name = request.tool_choice.name
        if name is None and len(request.tools) == 1:
            name = request.tools[0]["function"]["name"]
        opening = self.renderer.tool_format.opening(name)
        if not opening:
            session.notice("tool_choice 'required' among several tools cannot be enforced here")
        return opening

    def _place_tokens(
        self, session: Session, request: ChatRequest, tokens: tuple[int, ...]
    ) -> Prepared:
        """Token ids are taken as they are; they extend the longest turn that they begin with."""
        parent, known = None, 0
        begins_with: list[bool] = []
        for index, turn in enumerate(session.turns):
            start, end = turn.num_prompt - len(turn.new_tokens), turn.num_tokens
            added = turn.new_tokens + turn.output_tokens
            shared = start == 0 or (turn.parent is not None and begins_with[turn.parent])
            begins_with.append(shared and tokens[start:end] == added)
            if begins_with[-1] and end > known:
                parent, known = index, end
        return Prepared(request, Prompt(tokens, opens_reasoning=False), parent=parent)

    def _announce_overrides(self, session: Session, request: ChatRequest) -> None:
        """Say once for each value that a client asks for and does not get."""
        fixed = "this session's sampling is fixed by the run"
        replaced = session.sampling.overridden(request.sampling)
        notices = [
            f"{name}={repr(value)[:_LONGEST_SHOWN]} was replaced: {fixed}"
            for name, value in replaced.items()
        ]
        if request.seed is not None and not session.sampling.keeps_seeds:
            notices.append(f"seed was left out: {fixed}")
        for notice in notices:
            session.notice(notice)
            if notice not in self._announced and len(self._announced) < _MAX_ANNOUNCED:
                self._announced.add(notice)
                logger.warning("%s (rollout.sampling = 'override')", notice)

    async def run(
        self, session: Session, prepared: Prepared, *, left: OnAbandoned | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Sample one completion. Closing this generator early frees the engine's slot.

        With `left` it streams: deltas come as they are sampled, and a consumer that goes, or a session
        that ends, after some came hands over what adds these to the session as a turn. Without it,
        everything is read at the end, which is cheaper, and what is not finished is nothing.
        """
        reader = CompletionReader(
            self.tokenizer, self.renderer, session, prepared, streams=left is not None
        )
        begun = time.monotonic()
        latest = -math.inf  # nothing came yet

        def record(completed: Completed) -> int:
            self.metrics.observe(completed.turn, num_cached=completed.num_cached)
            return completed.index

        def leave() -> None:
            if left is not None and reader.has_tokens:
                duration_s = time.monotonic() - begun
                left(lambda: record(reader.record_left(duration_s)))

        stream = (
            self._engine.stream(self._engine_request(session, prepared))
            if prepared.max_new_tokens
            else _nothing()
        )
        self.metrics.num_running += 1
        try:
            with self._client_errors(session, schema_field=prepared.request.schema_field):
                try:
                    with (
                        Deadline(self._max_request_s) as deadline,
                        session.sampling_until(deadline.expire, leave=leave),
                    ):
                        while not reader.is_done:
                            deadline.wait()
                            chunk = await anext(stream)
                            deadline.rest()
                            latest = time.monotonic()
                            for delta in reader.read(chunk):
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
        yield completed

    def _engine_request(self, session: Session, prepared: Prepared) -> GenerateRequest:
        request, sampling = prepared.request, prepared.sampling
        seed = session.next_seed()
        if seed is None and session.sampling.keeps_seeds:
            seed = request.seed
        return GenerateRequest(
            tokens=prepared.prompt.tokens,
            max_new_tokens=prepared.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=sampling.logit_bias,
            stop=request.stop,
            seed=seed,
            num_top_logprobs=request.num_top_logprobs,
            json_schema=request.json_schema,
            session=session.id,
            request_id=secrets.token_hex(8),
        )

    @contextmanager
    def _client_errors(self, session: Session, *, schema_field: str) -> Iterator[None]:
        """What goes wrong with the engine's chunks, as the client is told of it."""
        try:
            yield
        except ContextOverflowError as exc:
            session.truncated = True
            raise context_overflow(
                prompt_tokens=exc.prompt_tokens, max_context=exc.max_context
            ) from exc
        except TimeoutError as exc:
            if session.is_closed:
                raise session_closed() from exc
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


def _texts(message: Message) -> Iterator[str]:
    """The texts of a message's content, as clients write them."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _num_characters(message: Message) -> int:
    """About as many as the message has, its calls included."""
    rest = (value for name, value in message.items() if name != "content")
    return sum(map(len, _texts(message))) + sum(len(str(value)) for value in rest)


def _is_unlimited(session: Session, prepared: Prepared) -> bool:
    """Nobody said how long the answer may be: then the time that it may take says so."""
    return session.limits.max_new_tokens is None and prepared.request.max_new_tokens is None


_CUT = GenerateChunk((), (), (), FinishReason.LENGTH)
"""Ends an answer that rambles on until its time is over: an outcome, for its engine is well."""


async def _nothing() -> AsyncIterator[GenerateChunk]:
    """What a request for no tokens gets."""
    yield GenerateChunk((), (), (), FinishReason.LENGTH)
