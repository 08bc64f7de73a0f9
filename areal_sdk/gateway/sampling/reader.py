"""Reads one completion: chunks of tokens become deltas, and at the end a recorded turn.

Text is cut at a stop string, also where the string is spread over several chunks.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from areal_sdk.engine import GenerateChunk, Sampling
from areal_sdk.gateway.errors import ApiError, SessionClosedError
from areal_sdk.gateway.sampling.request import ChatRequest, ToolUse
from areal_sdk.gateway.sessions.history import Placement, agreements
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.renderer import Prompt, Renderer
from areal_sdk.gateway.tokens.tokenizer import Detokenizer, Tokenizer
from areal_sdk.gateway.tool_calls.reasoning import PlainText
from areal_sdk.tool_calls import ReasoningDelta, TextDelta, ToolCall
from areal_sdk.types import Exclusion, FinishReason, ForkReason, Message, Tool, Turn


class StopFilter:
    """Passes text through up to the first stop string; holds back what may begin one.

    >>> stop = StopFilter(["END"])
    >>> stop.feed("one E"), stop.feed("ND two"), stop.matched
    ('one ', '', 'END')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        ends = [(at + len(s), s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if ends:
            end, self.matched = min(ends, key=lambda pair: (pair[0], -len(pair[1])))
            before, self._held = self._held[: end - len(self.matched)], ""
            return before
        ready = len(self._held) - max(_overlap(self._held, stop) for stop in self._stops)
        passed, self._held = self._held[:ready], self._held[ready:]
        return passed

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of `text` that are the beginning of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of the preceding events, for clients that want logprobs."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    top_logprobs: Sequence[Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class StreamedCall:
    """A tool call with the id that its result will refer to."""

    id: str
    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of one completion, which is recorded by now."""

    turn: Turn
    index: int
    """Index of the turn in its session."""
    stop_matched: str | int | None
    num_cached: int
    num_reasoning: int
    """Tokens spent on reasoning."""
    num_prefilled: int
    """Characters of the message's content that the client wrote."""


Delta = TextDelta | ReasoningDelta | StreamedCall | SampledTokens | Completed


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was placed in its session and rendered: ready to sample, n times."""

    request: ChatRequest
    prompt: Prompt
    placement: Placement | None = None
    fork: ForkReason | None = None
    """Reason of a fork that is known before sampling. If it is None, the session's history finds the reason when the
    turn is recorded."""
    parent: int | None = None
    new_messages: tuple[Message, ...] = ()
    opening: str = ""
    """Text at the prompt's end that is the beginning of the answer."""
    max_new_tokens: int = 0
    client_chose_length: bool = False
    """Whether the client's own limit is the shortest. Reaching it does not truncate the episode."""
    sampling: Sampling = field(default_factory=Sampling)

    def sampled_by(
        self, sampling: Sampling, *, max_new_tokens: int, client_chose_length: bool
    ) -> "Prepared":
        """This request with the settings by which its answer is sampled."""
        return Prepared(  # every request comes here: `replace` costs four times as much
            self.request,
            self.prompt,
            self.placement,
            self.fork,
            self.parent,
            self.new_messages,
            self.opening,
            max_new_tokens,
            client_chose_length,
            sampling,
        )

    def as_choice(self, number: int) -> "Prepared":
        """The request for one of several answers. If the request has a seed, each answer gets a seed of its own."""
        if not number or self.request.seed is None:
            return self
        return replace(self, request=replace(self.request, seed=self.request.seed + number))


def engine_fault(fault: str, *, status: int = 503, code: str = "engine_error") -> ApiError:
    """The error that tells the client of an infrastructure fault."""
    return ApiError(status, fault, code=code, retry=status == 503, fault=fault)


class CompletionReader:
    """Reads one completion's chunks into deltas, and at the end into a recorded turn."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer,
        session: Session,
        prepared: Prepared,
        *,
        streams: bool,
        is_frozen: bool = False,
    ) -> None:
        """`is_frozen`: the policy is not trained."""
        request = prepared.request
        reads_tools = bool(request.tools) and request.tool_choice.use is not ToolUse.NONE
        self.is_done = False
        self._streams = streams
        self._is_frozen = is_frozen
        self._offers_tools = reads_tools
        self._session = session
        self._tokenizer = tokenizer
        self._prepared = prepared
        self._call_id_length = renderer.tool_format.call_id_length
        self._detokenizer = Detokenizer(
            tokenizer, keep=renderer.shown if reads_tools else frozenset()
        )
        self._stop = StopFilter(request.stop)
        self._parser = (
            renderer.parser(
                request.tools if reads_tools else (),
                opens_reasoning=prepared.prompt.opens_reasoning,
            )
            if request.prompt_tokens is None
            else PlainText()
        )
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[StreamedCall] = []
        self.first_token_s = 0.0
        """Seconds from the request to its first token, set by the reader of the stream."""
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._last: GenerateChunk | None = None
        self.top_logprobs: list[Mapping[int, float]] = []
        self._num_read = 0
        self._opened = self._parser.feed(prepared.opening)
        self._num_prefilled = 0
        if request.prefill:  # part of the message, but the client has it already
            texts = [event.text for event in self._opened if isinstance(event, TextDelta)]
            self._opened, self._text = [], texts
            self._num_prefilled = sum(map(len, texts))

    def read(self, chunk: GenerateChunk) -> Iterable[Delta]:
        """The deltas that the chunk adds to the answer; without streaming, all of them at the last chunk."""
        self._tokens += chunk.tokens
        self._logprobs += chunk.logprobs
        self._versions += chunk.versions
        if chunk.versions and not self._is_frozen:
            self._session.sampled_under(chunk.versions[0])
        if chunk.top_logprobs:
            self.top_logprobs += chunk.top_logprobs
        if chunk.finish_reason is not None:
            self.is_done, self._last = True, chunk
        elif not self._streams:
            return ()
        return self._unread()

    def _unread(self) -> list[Delta]:
        """The deltas of all tokens that are in no delta yet."""
        deltas: list[Delta] = []
        begin, self._num_read = self._num_read, len(self._tokens)
        new = self._tokens[begin:]
        if self._prepared.request.logprobs:
            tops = self.top_logprobs[begin:] or [{}] * len(new)
            deltas.append(SampledTokens(new, self._logprobs[begin:], tops))
        text = self._stop.feed(self._detokenizer.feed(new))
        if self.is_done:
            text += self._stop.feed(self._detokenizer.finish()) + self._stop.finish()
        events = self._parser.feed(text)
        if self._opened:
            events, self._opened = [*self._opened, *events], []
        if self.is_done:
            events = [*events, *self._parser.finish()]
        for event in events:
            if isinstance(event, TextDelta):
                self._text.append(event.text)
                deltas.append(event)
            elif isinstance(event, ReasoningDelta):
                self._reasoning.append(event.text)
                deltas.append(event)
            elif call := self._accept(event):
                deltas.append(call)
        return deltas

    def _accept(self, found: ToolCall) -> StreamedCall | None:
        if self._calls and not self._prepared.request.parallel_tool_calls:
            self._session.notes.notice("a second tool call was left out: parallel calls are off")
            return None
        allowed = self._prepared.request.tool_choice.allowed
        if allowed is not None and found.name not in allowed:
            self._session.notes.notice(
                f"a call of {found.name!r} was left out: tool_choice forbids it"
            )
            return None
        call = StreamedCall(
            self._session.new_call_id(self._call_id_length),
            len(self._calls),
            found.name,
            found.arguments,
        )
        self._calls.append(call)
        return call

    def record(self, duration_s: float) -> Completed:
        """Add the turn to its session: from here on it counts."""
        assert self._last is not None, "record is called after the last chunk"
        if self._last.finish_reason is FinishReason.ABORT:
            raise engine_fault("the engine aborted a request that nobody cancelled")
        return self._record(duration_s)

    def record_left(self, duration_s: float) -> Completed:
        """Add the tokens that were sampled before the client left, as an unfinished turn."""
        return self._record(duration_s)

    @property
    def has_tokens(self) -> bool:
        return bool(self._tokens)

    def _record(self, duration_s: float) -> Completed:
        session, prepared, last = self._session, self._prepared, self._last
        finish_reason = (last and last.finish_reason) or FinishReason.ABORT
        if finish_reason is FinishReason.LENGTH and not prepared.client_chose_length:
            session.cut_short()
        for problem in self._parser.problems:
            session.notes.notice(problem)
        message = self._message()
        placement = prepared.placement
        fork, policy = prepared.fork, prepared.request.policy
        if fork is None:
            fork = (
                _reason_for_tokens(session.turns, prepared)
                if placement is None
                else session.history_of(policy).reason(placement)
            )
        prompt = prepared.prompt.tokens
        keeper, num_shared = _shared_beginning(session.turns, prepared, fork)
        turn = Turn(
            new_tokens=prompt[num_shared:],
            output_tokens=self._tokenizer.intern(self._tokens),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            message=message,
            new_messages=prepared.new_messages,
            temperature=prepared.sampling.temperature or 1.0,
            finish_reason=finish_reason,
            parent=prepared.parent,
            fork=fork,
            excluded=self._exclusion(),
            policy=policy,
            num_stale_kv=last.num_stale_kv if last else 0,
            duration_s=duration_s,
            began_s=max(0.0, time.monotonic() - duration_s - session.opened_at),
            first_token_s=self.first_token_s,
            queued_s=last.queued_s if last else 0.0,
            num_cached=last.num_cached if last else 0,
            offers_tools=self._offers_tools,
            details=self._told_tools(),
            num_shared=num_shared,
            shares_with=keeper,
            _before=None if keeper is None else session.turns[keeper],
        )
        try:
            index = session.record(turn, prompt=prompt)
        except SessionClosedError as exc:
            raise session.refusal() from exc
        if placement is not None:
            session.history_of(policy).add(placement, message, index, stops=prepared.request.stop)
        matched = self._stop.matched or (last.stop_matched if last else None)
        num_cached = last.num_cached if last else 0
        return Completed(
            turn, index, matched, num_cached, self._num_reasoning(), self._num_prefilled
        )

    def _told_tools(self) -> dict[str, list[Tool]]:
        """The tools that the request offers, if it begins a conversation; the turns that follow have the same tools."""
        is_told = self._offers_tools and self._prepared.parent is None
        return {"tools": [*self._prepared.request.tools]} if is_told else {}

    def _num_reasoning(self) -> int:
        """Number of tokens of the thought. Without its end, all tokens count, or those of its text if more follows."""
        if not self._reasoning:
            return 0
        end = self._tokenizer.added.get("</think>")
        if end in self._tokens:
            return self._tokens.index(end) + 1
        return (
            len(self._tokens)
            if not self._text and not self._calls
            else len(self._tokenizer.encode("".join(self._reasoning)))
        )

    def _message(self) -> Message:
        text = "".join(self._text)
        message: Message = {"role": "assistant", "content": text}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self._calls
            ]
        return message

    def _exclusion(self) -> Exclusion | None:
        if self._is_frozen:
            return Exclusion.FROZEN_POLICY
        if self._prepared.request.json_schema is not None:
            return Exclusion.GRAMMAR
        if math.isnan(math.fsum(self._logprobs)):
            return Exclusion.NO_LOGPROBS
        return self._prepared.sampling.exclusion


def _shared_beginning(
    turns: Sequence[Turn], prepared: Prepared, fork: ForkReason | None
) -> tuple[int | None, int]:
    """The turn of the same policy with the longest beginning in common with the prompt, and the length of that beginning in
    tokens."""
    parent = prepared.parent
    if parent is not None and fork is None:
        return parent, turns[parent].num_tokens
    agreed = agreements(turns, prepared.prompt.tokens, policy=prepared.request.policy)
    keeper = max(range(len(turns)), key=lambda index: agreed[index], default=None)
    if keeper is None or not agreed[keeper]:
        return None, 0
    return keeper, agreed[keeper]


def _reason_for_tokens(turns: Sequence[Turn], prepared: Prepared) -> ForkReason | None:
    """The reason why a prompt of token ids does not continue the latest turn; None if it does."""
    prompt = prepared.prompt.tokens
    turns = [turn for turn in turns if turn.policy == prepared.request.policy]
    if any(t.num_prompt == len(prompt) and t.prompt_tokens == prompt for t in turns):
        return ForkReason.RESAMPLED
    if prepared.parent is None:
        return ForkReason.EDITED if turns else None
    is_taken = any(turn.parent == prepared.parent for turn in turns)
    return ForkReason.EDITED if is_taken else None
