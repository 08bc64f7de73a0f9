"""Checks of a client's conversation on a model: played through the gateway's own rules.

The requests are those of real clients, one by one, as the gateway read them from their wire formats.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from areal_sdk.certificate.findings import TokenFinding, failed, note, ok
from areal_sdk.certificate.model import ChatModel
from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.sessions.history import History, Placement
from areal_sdk.gateway.sessions.meaning import meaning
from areal_sdk.gateway.tokens.renderer import Prompt, TemplateInput
from areal_sdk.tool_calls import ReasoningDelta, TextDelta, ToolCall
from areal_sdk.types import ForkReason, Message, Tool

_RECORDED = Path(__file__).with_name("transcripts")


@dataclass(frozen=True, slots=True)
class TranscriptRequest:
    """One request and the answer it got."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answer: Message


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation of one client."""

    client: str
    requests: tuple[TranscriptRequest, ...]


def recorded() -> Iterator[Transcript]:
    """The transcripts that come with this package, in order of the clients' names."""
    for path in sorted(_RECORDED.glob("*.json")):
        yield read_transcript(path)


def read_transcript(path: Path) -> Transcript:
    document = orjson.loads(path.read_bytes())
    requests = (
        TranscriptRequest(tuple(item["messages"]), tuple(item["tools"]), item["answer"])
        for item in document["requests"]
    )
    return Transcript(document["client"], tuple(requests))


_CURES = {
    ForkReason.SYSTEM_CHANGED: "keep the system message: a time or a count in it changes it",
    ForkReason.TOOLS_CHANGED: "send the same tools, in the same order, with every request",
    ForkReason.ARGS_CHANGED: "send the arguments of a call back as they came",
    ForkReason.EDITED: "send back what was said as it was said",
    ForkReason.COMPACTION: "summaries start a sequence of their own: expected of a client that compacts",
    ForkReason.SUBAGENT: "give each sub-agent a session of its own if it shall be scored on its own",
    ForkReason.RESAMPLED: "the same request was sent twice: retries should carry the client's retry count",
    ForkReason.THINKING_DROPPED: "send the thinking back, or use a template that knows about thinking",
    ForkReason.TEMPLATE_UNSTABLE: "use a template that writes assistant messages as they are",
}


def replay(model: ChatModel, transcript: Transcript) -> Iterator[TokenFinding]:
    """Yield one finding if all requests are exact. Otherwise yield the problems of the first request that has any."""
    player = _Player(model, transcript.client)
    for request in transcript.requests:
        problems = list(player.play(request))
        yield from problems
        if problems:
            return
    found = f"{len(transcript.requests)} requests, one sequence"
    if player.rewrites:
        found += "; the template rewrites earlier turns, what was sampled is kept"
    if player.refuses:
        found += f"; the template refuses the whole of it: {player.refuses}"
    is_plain = not player.rewrites and not player.refuses
    yield (ok if is_plain else note)("one sequence", found, client=transcript.client)


class _Player:
    """Plays requests as a session would, with the template's own words for the answers."""

    def __init__(self, model: ChatModel, client: str) -> None:
        self.rewrites = False
        """Whether the template writes earlier messages differently from how they were said."""
        self.refuses = ""
        """The reason why the template refuses a whole conversation, though it takes the new messages alone; else empty."""
        self._model = model
        self._client = client
        self._history = History()
        self._tokens: list[tuple[int, ...]] = []
        """Tokens of each turn: its prompt and its answer."""

    def play(self, request: TranscriptRequest) -> Iterator[TokenFinding]:
        renderer = self._model.renderer
        length = renderer.tool_format.call_id_length
        given = [_with_ids(message, length) for message in request.messages]
        messages = self._history.canonical(given, splits_reasoning=renderer.reasons)
        placement = self._history.place(messages, tools=request.tools, options={})
        if reason := self._history.reason(placement):
            found = f"request {len(self._tokens) + 1} starts another sequence: {reason.value}"
            yield failed("one sequence", found, _CURES[reason], client=self._client)
            return
        chat = TemplateInput(messages, request.tools)
        try:
            prompt = self._prompt(chat, placement)
        except TemplateRefusalError as exc:
            yield self._refused(chat, exc)
            return
        if placement.parent is not None:
            yield from self._drift(chat, prompt.tokens, len(self._tokens[placement.parent]))
        answer = _with_ids(request.answer, length)
        said = self._say(chat, answer)
        if said is not None:
            yield from self._round_trip(chat, prompt, said, answer)
        self._tokens.append(prompt.tokens + (said or self._words(answer)))
        self._history.add(placement, answer, len(self._tokens) - 1)

    def _prompt(self, chat: TemplateInput, placement: Placement) -> Prompt:
        if placement.parent is None:
            return self._model.renderer.first(chat)
        before = self._tokens[placement.parent]
        return self._model.renderer.extend(before, chat, placement.num_matched)

    def _refused(self, chat: TemplateInput, why: TemplateRefusalError) -> TokenFinding:
        """A finding: the template refused the chat, or wrote no answer from which the conversation could go on."""
        number = len(self._tokens) + 1
        try:
            self._model.renderer.first(chat)
        except TemplateRefusalError:
            found = f"request {number} is refused: {why}"
            cure = "use a template that accepts what this client sends"
        else:
            found = f"request {number}: earlier answers are missing from the prompt, or rewritten"
            cure = "correct the template: it must write what assistants said as they said it"
        return failed("template", found, cure, client=self._client)

    def _drift(
        self, chat: TemplateInput, tokens: tuple[int, ...], known: int
    ) -> Iterator[TokenFinding]:
        """Check that the `tokens` after the `known` ones are those with which the template ends the whole chat."""
        try:
            whole = self._model.renderer.first(chat).tokens
        except TemplateRefusalError as exc:
            self.refuses = str(exc)
            return
        if whole == tokens:
            return
        self.rewrites = True
        added = tokens[known:]
        tail = whole[len(whole) - len(added) :]
        if tail != added:
            yield failed(
                "drift",
                f"request {len(self._tokens) + 1} goes on with tokens the template would not write",
                "the template writes a message differently at the end than in between: correct it",
                client=self._client,
                expected=self._model.show(tail),
                got=self._model.show(added),
            )

    def _say(self, chat: TemplateInput, answer: Message) -> tuple[int, ...] | None:
        """The tokens of `answer` as the template writes it; None if the template does not write it after its own prompt."""
        try:
            return self._model.renderer.answer(chat, answer)
        except TemplateRefusalError:
            return None

    def _words(self, answer: Message) -> tuple[int, ...]:
        text = answer.get("content") or "MARK"
        tokens = self._model.tokenizer.encode_continuation(self._model.tokenizer.defuse(text))
        return tokens + self._model.tokenizer.encode_continuation(self._model.renderer.end_of_turn)

    def _round_trip(
        self, chat: TemplateInput, prompt: Prompt, said: tuple[int, ...], answer: Message
    ) -> Iterator[TokenFinding]:
        """Check that the text which the template writes for an answer is read as that answer."""
        renderer, tokenizer = self._model.renderer, self._model.tokenizer
        parser = renderer.parser(chat.tools, opens_reasoning=prompt.opens_reasoning)
        events = [*parser.feed(tokenizer.decode(said, keep=renderer.shown)), *parser.finish()]
        texts = [event.text for event in events if isinstance(event, TextDelta)]
        calls = [
            {"function": {"name": event.name, "arguments": event.arguments}}
            for event in events
            if isinstance(event, ToolCall)
        ]
        read: Message = {"role": "assistant", "content": "".join(texts), "tool_calls": calls}
        if calls and not texts:
            answer = {**answer, "content": ""}  # some templates leave out the text beside calls
        if meaning(read) == meaning(answer):
            return
        what = "tool round trip" if answer.get("tool_calls") else "answer round trip"
        thought = any(isinstance(event, ReasoningDelta) for event in events)
        problem = "; ".join(parser.problems) or ("read as thinking" if thought else "read as text")
        yield failed(
            what,
            f"what the template writes is not read back ({renderer.tool_format.name}): {problem}",
            "name the format that the template speaks: gateway.tool_format, here --tool-format",
            client=self._client,
            expected=(str(answer.get("tool_calls") or answer.get("content")),),
            got=self._model.show(said),
        )


def _with_ids(message: Message, length: int) -> Message:
    """The message with call ids as long as the gateway makes them for this model."""
    if message.get("tool_call_id"):
        return {**message, "tool_call_id": message["tool_call_id"][-length:]}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**c, "id": str(c.get("id"))[-length:]} for c in calls]}
    return message
