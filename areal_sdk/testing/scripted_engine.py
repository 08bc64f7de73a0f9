"""An engine that answers from a script: real tokens, versions, streaming and faults, no model.

It keeps every promise of `InferenceEngine` except that nothing is sampled, so a test that passes
against it exercises the same code as a run does.
"""

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, cycle, islice
from pathlib import Path

from tokenizers import Tokenizer

from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.errors import ContextOverflowError, EngineError
from areal_sdk.types import FinishReason, WeightUpdate


class Fault(StrEnum):
    """The fault of a scripted reply."""

    RAISE = "raise"
    """The engine raises EngineError."""
    HANG = "hang"
    """The engine accepts the request and never answers; only a cancellation ends it."""
    CLOSE = "close"
    """The stream ends without a finish reason, like a connection that broke."""
    ABORT = "abort"
    """The engine gives the request up and says so: finish reason `abort`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted completion."""

    output: str | Sequence[int] = ""
    """Text, to be tokenised, or token ids, used as they are."""
    stop: bool = True
    """The model ends its turn itself: its stop token follows the output."""
    fault: Fault | None = None
    after: int = 0
    """Tokens that are delivered before the fault."""
    logprobs: Sequence[float] | None = None
    """Logprobs of the tokens; None: `scripted_logprob` of each."""


Script = (
    str
    | Reply
    | Sequence[str | Reply | Sequence[int]]
    | Callable[[GenerateRequest], "ReplyLike | Awaitable[ReplyLike]"]
)
"""One reply for every request, one reply after the other, or a function of the request."""

ReplyLike = str | Reply | Sequence[int]

OnToken = Callable[[GenerateRequest, int], Awaitable[None]]


_MOST_KEPT = 1000
"""Number of texts whose tokens are cached: a script often repeats itself."""


def scripted_logprob(token: int, index: int) -> float:
    """The logprob of `token` as output number `index`. It depends on both, so that tests notice shifted or swapped
    lists."""
    return -((token * 31 + index * 7) % 97 + 1) / 50


class ScriptedEngine(InferenceEngine):
    """Answers requests from a script.

    Without `model_dir` text is tokenised byte by byte (token i is byte i), as the `tiny` model does,
    and token 258 ends a turn. With `constrains_json` it accepts schemas; the script must keep to them
    itself.

    >>> engine = ScriptedEngine(["Hello", Reply("par", stop=False), Reply(fault=Fault.RAISE)])
    """

    def __init__(
        self,
        script: Script = "ok",
        *,
        model_dir: Path | None = None,
        max_context: int = 4096,
        tokens_per_chunk: int = 1,
        on_token: OnToken | None = None,
        constrains_json: bool = False,
        keep_requests: int = 1000,
    ) -> None:
        self._replies = _replies(script)
        self._tokenizer = (
            Tokenizer.from_file(str(model_dir / "tokenizer.json")) if model_dir else None
        )
        self._info = EngineInfo(
            model=str(model_dir or ""),
            max_context=max_context,
            vocab_size=self._tokenizer.get_vocab_size() if self._tokenizer else 259,
            stop_tokens=_stop_tokens(model_dir) if model_dir else (258,),
            constrains_json=constrains_json,
        )
        self._encoded: dict[str, tuple[int, ...]] = {}
        self._version = 0
        self._running = asyncio.Event()
        self._running.set()
        self._tokens_per_chunk = tokens_per_chunk
        self._on_token = on_token
        self.requests: deque[GenerateRequest] = deque(maxlen=keep_requests)
        """The latest requests, oldest first."""
        self.num_requests = 0
        self.num_active = 0
        """Streams that are open."""
        self.updates: list[WeightUpdate] = []
        self.is_closed = False

    async def start(self) -> None:
        self.is_closed = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_paused(self) -> bool:
        return not self._running.is_set()

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        room = self._info.max_context - len(request.tokens)
        if room < 1:
            raise ContextOverflowError(
                prompt_tokens=len(request.tokens), max_context=self._info.max_context
            )
        self.requests.append(request)
        self.num_requests += 1
        self.num_active += 1
        try:
            reply = await self._replies(request)
            output = self._output(reply, request, limit=min(request.max_new_tokens, room))
            async for chunk in self._play(reply, output, request):
                yield chunk
        finally:
            self.num_active -= 1

    async def update_weights(self, update: WeightUpdate) -> None:
        self.updates.append(update)
        self._version = update.version

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def aclose(self) -> None:
        self.is_closed = True

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens that a scripted text becomes."""
        if self._tokenizer is None:
            return tuple(text.encode())
        if (known := self._encoded.get(text)) is None:
            known = tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
            if len(self._encoded) < _MOST_KEPT:
                self._encoded[text] = known
        return known

    def decode(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None:
            return bytes(t for t in tokens if t < 256).decode(errors="replace")
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    async def _play(
        self, reply: Reply, output: "_Output", request: GenerateRequest
    ) -> AsyncIterator[GenerateChunk]:
        """Deliver `output` token by token; each token takes the engine's version at its own moment."""
        num_delivered = len(output.tokens) if reply.fault is None else reply.after
        chunk: list[tuple[int, float, int]] = []
        for index, token in enumerate(output.tokens[:num_delivered]):
            await asyncio.sleep(0)  # other requests, weight updates and cancels get their turn
            if self._on_token is not None:
                await self._on_token(request, index)
            await self._running.wait()
            chunk.append((token, output.logprobs[index], self._version))
            if len(chunk) == self._tokens_per_chunk and index + 1 < len(output.tokens):
                yield _chunk(chunk, request)
                chunk = []
        match reply.fault:
            case None:
                yield _chunk(chunk, request, output.finish_reason, output.stop_matched)
            case Fault.ABORT:
                yield _chunk(chunk, request, FinishReason.ABORT)
            case _:
                if chunk:
                    yield _chunk(chunk, request)
                await _fail(reply.fault)

    def _output(self, reply: Reply, request: GenerateRequest, *, limit: int) -> "_Output":
        """The tokens of a reply, cut by the request's limits as a real engine would."""
        said = self.encode(reply.output) if isinstance(reply.output, str) else tuple(reply.output)
        own_stops = () if request.ignore_eos else self._info.stop_tokens
        if own_stops and reply.stop:
            said = (*said, own_stops[0])
        elif request.ignore_eos:  # a model never runs out of tokens
            said = tuple(islice(cycle(said or (0,)), limit))
        tokens: list[int] = []
        stop_matched: str | int | None = None
        for token in said[:limit]:
            tokens.append(token)
            stop_matched = self._stop_matched(tokens, request, own_stops)
            if stop_matched is not None:
                break
        cut = len(said) > len(tokens) or len(tokens) == limit
        by_length = stop_matched is None and (cut or not reply.stop)
        logprobs = [
            scripted_logprob(token, i) if reply.logprobs is None else reply.logprobs[i]
            for i, token in enumerate(tokens)
        ]
        return _Output(
            tuple(tokens),
            tuple(logprobs),
            FinishReason.LENGTH if by_length else FinishReason.STOP,
            stop_matched,
        )

    def _stop_matched(
        self, tokens: Sequence[int], request: GenerateRequest, own_stops: Sequence[int]
    ) -> str | int | None:
        if tokens[-1] in own_stops or tokens[-1] in request.stop_tokens:
            return tokens[-1]
        if not request.stop:
            return None
        text = self.decode(tokens)
        return next((stop for stop in request.stop if stop in text), None)


@dataclass(frozen=True, slots=True)
class _Output:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    stop_matched: str | int | None


def _replies(script: Script) -> Callable[[GenerateRequest], Awaitable[Reply]]:
    if callable(script):
        ask = script

        async def from_function(request: GenerateRequest) -> Reply:
            answer = ask(request)
            return _reply(await answer if inspect.isawaitable(answer) else answer)

        return from_function
    always = _reply(script) if isinstance(script, (str, Reply)) else None
    replies = [] if isinstance(script, (str, Reply)) else [_reply(item) for item in script]
    numbers = count()

    async def from_list(request: GenerateRequest) -> Reply:
        if always is not None:
            return always
        number = next(numbers)
        if number >= len(replies):
            raise EngineError(
                f"the script has {len(replies)} replies and this is request {number + 1}: "
                "write one more, or give a function of the request"
            )
        return replies[number]

    return from_list


def _reply(item: ReplyLike) -> Reply:
    return item if isinstance(item, Reply) else Reply(item)


def _chunk(
    sampled: Sequence[tuple[int, float, int]],
    request: GenerateRequest,
    finish_reason: FinishReason | None = None,
    stop_matched: str | int | None = None,
) -> GenerateChunk:
    top: tuple[Mapping[int, float], ...] = ()
    if request.num_top_logprobs:
        top = tuple(_top_logprobs(token, lp, request.num_top_logprobs) for token, lp, _ in sampled)
    return GenerateChunk(
        tokens=tuple(token for token, _, _ in sampled),
        logprobs=tuple(logprob for _, logprob, _ in sampled),
        versions=tuple(version for _, _, version in sampled),
        finish_reason=finish_reason,
        stop_matched=stop_matched,
        top_logprobs=top,
    )


def _top_logprobs(token: int, logprob: float, num: int) -> dict[int, float]:
    """The scripted token and, behind it, its neighbours in the vocabulary."""
    return {(token + i) % 256 if i else token: logprob - i for i in range(num)}


async def _fail(fault: Fault) -> None:
    match fault:
        case Fault.RAISE:
            raise EngineError("scripted fault")
        case Fault.HANG:
            await asyncio.Event().wait()
        case Fault.CLOSE | Fault.ABORT:
            return


def _stop_tokens(model_dir: Path) -> tuple[int, ...]:
    eos = json.loads((model_dir / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)
