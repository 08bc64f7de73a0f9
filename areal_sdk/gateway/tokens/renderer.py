"""Turns conversations into prompt tokens. A later turn extends the tokens of the turn before it exactly.

A first turn renders the whole chat. A later turn renders a chat with a sentinel in place of the last known
answer, and encodes only the text that the template writes after the sentinel. The template never renders
the answer itself, because the tokens of the answer are the sampled tokens.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.template_traits import (
    PROBE_CALL,
    PROBE_RESULT,
    PROBE_TOOL,
    TemplateTraits,
    as_it_is,
    disarmed,
)
from areal_sdk.gateway.tokens.tokenizer import BREAKER, Tokenizer
from areal_sdk.gateway.tool_calls import FORMATS, choose_format, weave
from areal_sdk.gateway.tool_calls.plain import PLAIN
from areal_sdk.gateway.tool_calls.reasoning import PlainText, Reasoning
from areal_sdk.tool_calls import Parser, ToolFormat
from areal_sdk.types import Message, Tool

_SENTINEL = "\ufdd2"
"""Stands for the answer that is already tokens. A noncharacter: no text may hold it."""

_SYSTEM_ROLES = ("system", "developer")

_RESERVED = str.maketrans(dict.fromkeys((BREAKER, "\ufdd1", _SENTINEL), "\ufffd"))


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """A conversation as the model shall see it."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    opens_reasoning: bool
    """Whether the prompt ends inside `<think>`: the model then begins by thinking."""


class Renderer:
    """Renders one model's chats."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        tool_format: ToolFormat | None = None,
        formats: Iterable[ToolFormat] = tuple(FORMATS.values()),
    ) -> None:
        """`tool_format` overrules the template, whose source otherwise says which of `formats` it writes."""
        self.tokenizer = tokenizer
        self._template = template
        self._traits = TemplateTraits.of(template)
        self._added_ids = frozenset(tokenizer.added.values())
        self.weaves_tools = not (self._traits.writes_calls and self._traits.describes_tools)
        if tool_format is None:
            tool_format = PLAIN if self.weaves_tools else choose_format(template.source, formats)
        self.tool_format = tool_format
        self.shown = frozenset(
            tokenizer.added[text] for text in self.tool_format.shown if text in tokenizer.added
        )
        """Special tokens that the parser must see."""
        self.reasons = "<think>" in template.source or "reasoning_content" in template.source
        self._disarm = as_it_is  # probes hold no special tokens
        self.end_of_turn = self._probe_end_of_turn()
        """The special token that the template writes after an answer; empty if there is none."""
        user = {"role": "user", "content": "."}
        self.writes_system = self._writes({"role": "system", "content": _SENTINEL}, user)
        thoughtful = {"role": "assistant", "content": ".", "reasoning_content": _SENTINEL}
        self.writes_reasoning = self._writes(user, thoughtful)
        self._is_local = self._probe_locality()
        self._disarm = self._defuse

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        tool_format: ToolFormat | None = None,
        formats: Iterable[ToolFormat] = tuple(FORMATS.values()),
    ) -> "Renderer":
        """The renderer of the model in `model_dir`; ConfigError without a template or a tokenizer."""
        template = ChatTemplate.load(model_dir)
        return cls(Tokenizer.load(model_dir), template, tool_format=tool_format, formats=formats)

    def parser(self, tools: Sequence[Tool], *, opens_reasoning: bool) -> Parser:
        """The parser for one completion of a request with these tools."""
        parser: Parser = self.tool_format.parser(tools) if tools else PlainText()
        if self.reasons:
            parser = Reasoning(parser, open_already=opens_reasoning)
        return parser

    def text(self, chat: TemplateInput, *, asks: bool = True) -> str:
        """The text that the template makes of a chat, up to the place of the model's answer."""
        return self._render(chat.messages, chat, add_generation_prompt=asks).replace(BREAKER, "")

    def first(self, chat: TemplateInput, *, opening: str = "", most: int | None = None) -> Prompt:
        """The prompt of a conversation that continues no recorded turn.

        `opening` begins the answer, and the model continues it. A client's own text in it must come from `begun`.
        `most` is that of `Tokenizer.encode`.
        """
        text, opens_reasoning = _open(self._render(chat.messages, chat), opening)
        return Prompt(self.tokenizer.encode(text, most=most), opens_reasoning)

    def extend(
        self, before: tuple[int, ...], chat: TemplateInput, num_known: int, *, opening: str = ""
    ) -> Prompt:
        """The prompt that continues `before`, the tokens of the first `num_known` messages.

        Raises `TemplateRefusalError` if the template cannot continue an answer that it did not write.
        """
        addition = self.addition(before[-1], chat, num_known, opening=opening)
        return Prompt(before + addition.tokens, addition.opens_reasoning)

    def addition(
        self,
        last_token: int,
        chat: TemplateInput,
        num_known: int,
        *,
        opening: str = "",
        most: int | None = None,
    ) -> Prompt:
        """The tokens that `extend` adds to tokens that end with `last_token`."""
        head = self._short_head(chat.messages) if self._is_local else chat.messages[: num_known - 1]
        answer, new = chat.messages[num_known - 1], chat.messages[num_known:]
        text, opens_reasoning = _open(self._after_answer(head, answer, new, chat), opening)
        tokens = self.tokenizer.encode_continuation(text, most=most)
        if tokens and tokens[0] == last_token and last_token in self._added_ids:
            tokens = tokens[1:]  # the model ended its turn itself
        return Prompt(tokens, opens_reasoning)

    def answer(self, chat: TemplateInput, message: Message) -> tuple[int, ...]:
        """The tokens that the model would sample to say `message` next, the end of the turn included. Demonstrations
        need them; sampled answers are never tokenised again."""
        before = self._render(chat.messages, chat)
        whole = self._render((*chat.messages, message), chat, add_generation_prompt=False)
        if not whole.startswith(before):
            raise TemplateRefusalError("it writes an answer differently from what it asks for")
        said, end, _ = whole[len(before) :].rpartition(self.end_of_turn or "\0")
        return self.tokenizer.encode_continuation(said + end if end else whole[len(before) :])

    def _after_answer(
        self, head: Sequence[Message], answer: Message, new: Sequence[Message], chat: TemplateInput
    ) -> str:
        """The text that the template writes after `answer`, the end of the turn included."""
        for stand_in in self._stand_ins(answer):
            try:
                text = self._render((*head, stand_in, *new), chat)
            except TemplateRefusalError:
                continue
            before, found, after = text.rpartition(_SENTINEL)
            if not stand_in["content"] and _SENTINEL in before:
                continue  # the template repeats a call's name with its result
            if found and "tool_calls" in stand_in:
                _, found, after = after.partition(self.end_of_turn)
                after = self.end_of_turn + after
            if found:
                return after
        raise TemplateRefusalError(
            "it does not write an assistant message's content as it is given"
        )

    def _stand_ins(self, answer: Message) -> Iterator[Message]:
        """Messages to render in the answer's place, the closest to it first.

        A template that looks up the call of each tool result needs the calls; another one writes no content beside them.
        """
        shows_calls = self.end_of_turn and not self.weaves_tools
        calls = [
            {**call, "function": {"name": call["function"]["name"], "arguments": "{}"}}
            for call in (answer.get("tool_calls") if shows_calls else None) or ()
        ]
        if calls:
            yield {"role": "assistant", "content": _SENTINEL, "tool_calls": calls}
        yield {"role": "assistant", "content": _SENTINEL}
        if calls:  # Mistral counts texts, and writes none beside calls
            calls[-1]["function"]["name"] = _SENTINEL
            yield {"role": "assistant", "content": "", "tool_calls": calls}

    def _render(
        self,
        messages: Sequence[Message],
        chat: TemplateInput,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        if self.weaves_tools:
            messages = weave(messages, chat.tools)
        return self._template.render(
            [self._traits.write(message, self._disarm) for message in messages],
            tools=None if self.weaves_tools else self._tools(chat.tools),
            add_generation_prompt=add_generation_prompt,
            options=disarmed(chat.options, self._disarm, ours=False),
        )

    def _tools(self, tools: Sequence[Tool]) -> Sequence[Tool] | None:
        """Tools with added tokens disarmed. None if there are no tools, as templates expect."""
        if not tools:
            return None
        text = orjson.dumps(tools).decode()
        if self.tokenizer.defuse(text) == text and _SENTINEL not in text:
            return tools  # nearly all: one search of their text is cheaper than many
        return [disarmed(tool, self._disarm, ours=False) for tool in tools]

    def begun(self, text: str) -> str:
        """A client's beginning of an answer, made safe to be an `opening`."""
        return self._disarm(text, True)

    def _defuse(self, text: str, ours: bool) -> str:
        """The text with its special tokens broken. An assistant's own `<think>` and `<tool_call>` stay."""
        if _SENTINEL in text and text != _SENTINEL:
            text = text.translate(_RESERVED)
        return self.tokenizer.defuse(text, only_special=ours)

    @staticmethod
    def _short_head(messages: Sequence[Message]) -> list[Message]:
        """The leading system messages and one user message, enough for most templates."""
        systems = itertools.takewhile(lambda m: m.get("role") in _SYSTEM_ROLES, messages)
        return [*systems, {"role": "user", "content": "."}]

    def _writes(self, *messages: Message) -> bool:
        """Whether the sentinel, somewhere in `messages`, reaches the text."""
        try:
            return _SENTINEL in self._render(
                messages, TemplateInput(()), add_generation_prompt=False
            )
        except TemplateRefusalError:
            return False

    def _probe_end_of_turn(self) -> str:
        messages = ({"role": "user", "content": "."}, {"role": "assistant", "content": _SENTINEL})
        try:
            text = self._render(messages, TemplateInput(()), add_generation_prompt=False)
        except TemplateRefusalError:
            return ""
        return self.tokenizer.leading_added_token(text.rpartition(_SENTINEL)[2])

    def _probe_locality(self) -> bool:
        """Whether the text after an answer is independent of messages long before it. This holds for nearly all
        templates, and lets a late turn cost as little as an early one."""
        user = {"role": "user", "content": "probe"}
        said = {"role": "assistant", "content": "probe"}
        system = {"role": "system", "content": "probe"}
        for tools in ((), (PROBE_TOOL,)):
            calls = [PROBE_CALL] if tools else []
            cases = [(said, (user,)), (said, (user, said, user))]
            cases += [(call, (PROBE_RESULT,)) for call in calls]
            cases += [(call, (PROBE_RESULT, said, user)) for call in calls]
            past = [user, *(m for call in calls for m in (call, PROBE_RESULT)), said, user]
            for lead, (answer, new) in itertools.product(([], [system]), cases):
                chat = TemplateInput((*lead, *past, answer, *new), tools)
                if not self._same_after(lead, past, answer, new, chat):
                    return False
        return True

    def _same_after(
        self,
        lead: list[Message],
        past: list[Message],
        answer: Message,
        new: tuple[Message, ...],
        chat: TemplateInput,
    ) -> bool:
        try:
            short = self._after_answer(self._short_head(lead), answer, new, chat)
        except TemplateRefusalError:
            short = None
        try:
            return short == self._after_answer([*lead, *past], answer, new, chat)
        except TemplateRefusalError:
            return short is None


def _open(text: str, opening: str) -> tuple[str, bool]:
    """A prompt's text with the beginning of its answer, and whether it ends inside a thought."""
    opens_reasoning = text.rstrip().endswith("<think>")
    if not opening:
        return text, opens_reasoning
    return (f"{text}\n</think>\n\n" if opens_reasoning else text) + opening, False
