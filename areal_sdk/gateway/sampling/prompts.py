"""Places a request in its session's tree and renders its prompt. Nothing is sampled here.

A prompt that continues a recorded turn is that turn's tokens plus the tokens of the new messages.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import orjson

from areal_sdk.gateway.errors import (
    CONTEXT_OVERFLOW,
    ApiError,
    TemplateRefusalError,
    TooManyTokensError,
    bad_request,
    context_overflow,
)
from areal_sdk.gateway.sampling.reader import Prepared
from areal_sdk.gateway.sampling.request import ChatRequest, Cut, ToolUse, cuts_of
from areal_sdk.gateway.sessions.history import History, Placement, agreements
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.tokens.renderer import Prompt, Renderer, TemplateInput
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.gateway.untrusted import LargeWork, is_small
from areal_sdk.types import ForkReason, Message, Tool

_LEFT_OUT = "the oldest messages were left out: the client asked for truncation"


class PromptBuilder:
    """Finds the turn that a request continues, and renders the rest of its prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        renderer: Renderer,
        large: LargeWork,
        *,
        max_context: Callable[[], int],
    ) -> None:
        """`large` runs the work of large requests outside the event loop."""
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._large = large
        self._max_context = max_context

    async def prepare(
        self, session: Session, request: ChatRequest, num_bytes: int | None, num_new: int | None
    ) -> Prepared:
        if request.prompt_text is not None:
            text = request.prompt_text
            self._check_length(session, len(text), param="prompt")
            most = self._most_tokens(len(text))
            with self._refusing_overflow(param="prompt"):
                tokens = await self._large.run(
                    len(text), lambda: self._tokenizer.encode_document(text, most=most)
                )
            if not tokens:
                raise bad_request("prompt is empty: send at least one token", param="prompt")
            request = replace(request, prompt_tokens=tokens, prompt_text=None)
            return self._place_tokens(session, request, tokens)
        if request.prompt_tokens is not None:
            return self._place_tokens(session, request, request.prompt_tokens)
        if request.drops_oldest and (cuts := cuts_of(request.messages)):
            return await self._place_latest(session, request, cuts, num_bytes, num_new)
        return await self.prepare_messages(session, request, num_bytes, num_new)

    async def _place_latest(
        self,
        session: Session,
        request: ChatRequest,
        cuts: Sequence[Cut],
        num_bytes: int | None,
        num_new: int | None,
    ) -> Prepared:
        """Place the longest end of the conversation that leaves room for an answer, found in few attempts."""

        async def prepare(asked: ChatRequest) -> Prepared | None:
            try:
                placed = await self.prepare_messages(session, asked, num_bytes, num_new)
            except ApiError as exc:
                if exc.code != CONTEXT_OVERFLOW:
                    raise
                return None
            return placed if len(placed.prompt.tokens) < self._max_context() else None

        if (fits := await prepare(request)) is not None:
            return fits
        low, high, step = 0, len(cuts) - 1, 0
        while low < high:
            number = min(low + step, (low + high) // 2)
            placed = await prepare(cuts[number].of(request))
            if placed is None:
                low, step = number + 1, 2 * step + 1
            else:
                high, fits = number, placed
        session.notes.notice(_LEFT_OUT)
        if fits is not None:
            return fits
        return await self.prepare_messages(session, cuts[high].of(request), num_bytes, num_new)

    def _least_tokens(self, request: ChatRequest, num_bytes: int | None) -> int:
        """A lower bound of the prompt's tokens, from the number of its messages and their characters. A template may
        trim texts, and leave out the thoughts of an assistant."""
        messages, most = request.messages, self._tokenizer.most_characters_a_token
        is_short = most is None or (
            num_bytes is not None and num_bytes <= most * self._max_context()
        )
        if is_short or len(messages) > self._max_context():
            return len(messages)
        assert most is not None, "it is not short"
        said = (text.rpartition("</think>")[2] for m in messages for text in _texts(m))
        num_characters = sum(len(text.strip()) for text in said)
        return max(len(messages), -(-num_characters // most))

    def _check_length(self, session: Session, num_characters: int, *, param: str) -> None:
        most = self._tokenizer.most_characters_a_token
        least = 0 if most is None else -(-num_characters // most)
        if least > self._max_context():
            raise context_overflow(
                prompt_tokens=least, max_context=self._max_context(), at_least=True, param=param
            )

    def _most_tokens(self, size: int, *, is_counted: bool = False) -> int | None:
        """The number of tokens of a large text that are encoded before the text is refused; None for a small text."""
        if is_small(size):
            return None
        return sys.maxsize if is_counted else self._max_context()

    @contextmanager
    def _refusing_overflow(self, *, num_before: int = 0, param: str = "messages") -> Iterator[None]:
        """Turn `TooManyTokensError` into the client's error. `num_before` is the number of prompt tokens before the
        encoded text."""
        try:
            yield
        except TooManyTokensError as exc:
            raise context_overflow(
                prompt_tokens=num_before + exc.num_tokens,
                max_context=self._max_context(),
                at_least=True,
                param=param,
            ) from exc

    async def prepare_messages(
        self,
        session: Session,
        request: ChatRequest,
        num_bytes: int | None,
        num_new: int | None,
        *,
        is_counted: bool = False,
    ) -> Prepared:
        """Render the messages as a prompt. With `is_counted`, a text that does not fit is encoded to its end, so that its tokens
        can be counted."""
        history = session.history_of(request.policy)
        if is_small(num_new or 0) and not session.placing.locked():
            messages, placement = self._place(history, request, num_bytes)
        else:
            async with session.placing:
                messages, placement = await self._large.run(
                    num_new or 0, lambda: self._place(history, request, num_bytes)
                )
        opening = self._opening(session, request)
        begun = self._renderer.begun(request.prefill) or opening
        chat = TemplateInput(messages, self._tools_to_render(request), request.template_options)
        if placement.parent is None:
            prompt = await self._first(chat, begun, num_bytes, is_counted=is_counted)
            return Prepared(request, prompt, placement, new_messages=messages, opening=opening)
        turn = session.turns[placement.parent]
        known = placement.num_matched
        last_token = (turn.output_tokens or turn.prompt_tokens)[-1]
        size = num_bytes or 0
        if num_bytes is None or not is_small(num_bytes):
            size = sum(map(_num_characters, messages[known:]))
        most = self._most_tokens(size, is_counted=is_counted)
        try:
            with self._refusing_overflow(num_before=turn.num_tokens):
                added = await self._large.run(
                    size,
                    lambda: self._renderer.addition(
                        last_token, chat, known, opening=begun, most=most
                    ),
                )
        except TemplateRefusalError:
            unstable = replace(placement, parent=None, num_matched=0)
            prompt = await self._first(chat, begun, num_bytes, is_counted=is_counted)
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

    def _place(
        self, history: History, request: ChatRequest, num_bytes: int | None
    ) -> tuple[tuple[Message, ...], Placement]:
        least = self._least_tokens(request, num_bytes)
        if least > self._max_context():
            raise context_overflow(
                prompt_tokens=least, max_context=self._max_context(), at_least=True
            )
        messages = history.canonical(request.messages, splits_reasoning=self._renderer.reasons)
        options = request.template_options
        return messages, history.place(messages, tools=request.tools, options=options)

    async def _first(
        self, chat: TemplateInput, opening: str, num_bytes: int | None, *, is_counted: bool
    ) -> Prompt:
        size = num_bytes
        if size is None:
            size = sum(map(_num_characters, chat.messages)) + len(orjson.dumps(chat.tools))
        most = self._most_tokens(size, is_counted=is_counted)
        try:
            with self._refusing_overflow():
                return await self._large.run(
                    size, lambda: self._renderer.first(chat, opening=opening, most=most)
                )
        except TemplateRefusalError as exc:
            raise bad_request(
                f"the model's chat template does not accept these messages: {exc}", param="messages"
            ) from exc

    def _tools_to_render(self, request: ChatRequest) -> tuple[Tool, ...]:
        if self._renderer.weaves_tools and request.tool_choice.use is ToolUse.NONE:
            return ()
        return request.tools

    def _opening(self, session: Session, request: ChatRequest) -> str:
        """The beginning of the answer, if the client wrote one or demands a tool call; else empty."""
        if request.prefill:
            return request.prefill
        if request.tool_choice.use is not ToolUse.REQUIRED:
            return ""
        name = request.tool_choice.name
        if name is None and len(request.tools) == 1:
            name = request.tools[0]["function"]["name"]
        opening = self._renderer.tool_format.opening(name and self._renderer.begun(name))
        if not opening:
            session.notes.notice(
                "tool_choice 'required' among several tools cannot be enforced here"
            )
        return opening

    def _place_tokens(
        self, session: Session, request: ChatRequest, tokens: tuple[int, ...]
    ) -> Prepared:
        """Place token ids, which are taken as they are. They extend the longest turn with which they begin."""
        turns = session.turns
        agreed = agreements(turns, tokens, policy=request.policy)
        begun = [index for index, turn in enumerate(turns) if agreed[index] == turn.num_tokens]
        parent = max(begun, key=lambda index: agreed[index], default=None)
        return Prepared(request, Prompt(tokens, opens_reasoning=False), parent=parent)


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
    """The number of characters in the message, its calls included; roughly."""
    rest = (value for name, value in message.items() if name != "content")
    return sum(map(len, _texts(message))) + sum(len(str(value)) for value in rest)
