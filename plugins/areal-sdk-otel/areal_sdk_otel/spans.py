"""An episode as a trace: one span for the episode, and below it one for each call of the model and of a tool."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from areal_sdk import Episode, Message, Turn
from areal_sdk.types import OutcomeKind
from areal_sdk_otel import otlp
from areal_sdk_otel.messages import as_json, text_of, tools_as_json
from areal_sdk_otel.names import (
    EVALUATION_EVENT,
    FUNCTION,
    PROVIDER,
    Name,
    Operation,
)

NS = 1_000_000_000
MAX_MESSAGE = 1000
"""Maximum number of characters of an error's message."""


@dataclass(frozen=True, slots=True)
class Teller:
    """Makes traces of the episodes of one run."""

    agent: str
    model: str
    content: bool
    """Whether texts leave the run: messages, arguments and results of tools."""
    whole: bool = False
    """Whether each call has its whole history and its tools, as the conventions ask. A live run sends what is new."""

    def tell(self, episode: Episode, *, split: str, dropped: str, now_ns: int) -> "Trace":
        """The trace of an episode that has just ended."""
        turns = episode.turns
        last_s = max((turn.began_s + turn.duration_s for turn in turns), default=0.0)
        length_ns = int(max(last_s, episode.duration_s) * NS)
        trace = Trace(start_ns=now_ns - length_ns, end_ns=now_ns)
        calls = [secrets.token_hex(8) for _ in turns]
        trace.spans.append(self._episode(episode, trace, split=split, dropped=dropped))
        for index in range(len(turns)):
            trace.spans.append(self._call(index, episode, trace, calls[index]))
            trace.spans.extend(self._tools(index, episode, trace))
        trace.events.extend(_verdict(episode, trace))
        for index, reward in enumerate(episode.outcome.turn_rewards[: len(turns)]):
            if reward is not None:
                about: dict[str, otlp.Attribute] = {
                    Name.EVALUATION: "reward",
                    Name.SCORE: reward,
                    Name.TURN: index,
                }
                at_ns = trace.at(turns[index].began_s + turns[index].duration_s)
                trace.events.append(trace.event(calls[index], at_ns, about))
        return trace

    def _episode(self, episode: Episode, trace: "Trace", *, split: str, dropped: str) -> bytes:
        outcome, turns = episode.outcome, episode.turns
        attributes: dict[str, otlp.Attribute] = {
            Name.OPERATION: Operation.EPISODE,
            Name.PROVIDER: PROVIDER,
            Name.AGENT: self.agent,
            Name.MODEL: self.model,
            Name.CONVERSATION: episode.id,
            Name.INPUT_TOKENS: sum(turn.num_prompt for turn in turns),
            Name.OUTPUT_TOKENS: sum(len(turn.output_tokens) for turn in turns),
            Name.ERROR: outcome.error,
            Name.TASK: episode.task.id,
            Name.SOURCE: episode.task.source or None,
            Name.SPLIT: split,
            Name.GROUP: episode.group or None,
            Name.SIBLING: episode.sibling,
            Name.ATTEMPT: episode.attempt,
            Name.REWARD: outcome.reward,
            Name.SUCCESS: outcome.success,
            Name.DROPPED: dropped or None,
            Name.TRUNCATED: episode.truncated,
        }
        failed = outcome.kind is OutcomeKind.ERROR
        return otlp.span(
            trace=trace.id,
            id=trace.root,
            name=f"{Operation.EPISODE} {self.agent}",
            kind=otlp.Kind.INTERNAL,
            start_ns=trace.start_ns,
            end_ns=trace.end_ns,
            attributes=attributes,
            error=outcome.message[:MAX_MESSAGE] if failed else None,
        )

    def _call(self, index: int, episode: Episode, trace: "Trace", id: str) -> bytes:
        turn = episode.turns[index]
        attributes: dict[str, otlp.Attribute] = {
            Name.OPERATION: Operation.CALL,
            Name.PROVIDER: PROVIDER,
            Name.MODEL: self.model,
            Name.CONVERSATION: episode.id,
            Name.TEMPERATURE: turn.temperature,
            Name.FINISH_REASONS: (turn.finish_reason.value,),
            Name.FIRST_CHUNK_S: turn.first_token_s or None,
            Name.INPUT_TOKENS: turn.num_prompt,
            Name.OUTPUT_TOKENS: len(turn.output_tokens),
            Name.CACHED_TOKENS: turn.num_cached,
            Name.TURN: index,
            Name.OLDEST_VERSION: min(turn.versions, default=None),
            Name.NEWEST_VERSION: max(turn.versions, default=None),
            Name.FORK: turn.fork,
            Name.EXCLUDED: turn.excluded,
        }
        if self.content:
            before, first = _history(episode, turn) if self.whole else ([], turn)
            attributes[Name.INPUT_MESSAGES] = as_json([*before, *turn.new_messages])
            attributes[Name.TOOL_DEFINITIONS] = tools_as_json(first.details.get("tools"))
            attributes[Name.CONTINUES] = None if self.whole else turn.parent
            attributes[Name.OUTPUT_MESSAGES] = as_json(
                [turn.message], finish_reason=turn.finish_reason.value
            )
        return otlp.span(
            trace=trace.id,
            id=id,
            parent=trace.root,
            name=f"{Operation.CALL} {self.model}",
            kind=otlp.Kind.CLIENT,
            start_ns=trace.at(turn.began_s),
            end_ns=trace.at(turn.began_s + turn.duration_s),
            attributes=attributes,
        )

    def _tools(self, index: int, episode: Episode, trace: "Trace") -> Iterator[bytes]:
        """A span for each call of a tool that a later turn answers. Nobody knows whether the others ran."""
        asked = episode.turns[index]
        for call in asked.message.get("tool_calls") or ():
            found = _answer(episode, index, call.get("id"))
            if found is None:
                continue
            answered, result = found
            name = str(call["function"]["name"])
            attributes: dict[str, otlp.Attribute] = {
                Name.OPERATION: Operation.TOOL,
                Name.CONVERSATION: episode.id,
                Name.TOOL: name,
                Name.TOOL_TYPE: FUNCTION,
                Name.TOOL_CALL: call.get("id"),
                Name.TURN: index,
            }
            if self.content:
                attributes[Name.TOOL_ARGUMENTS] = str(call["function"].get("arguments"))
                attributes[Name.TOOL_RESULT] = result
            yield otlp.span(
                trace=trace.id,
                id=secrets.token_hex(8),
                parent=trace.root,
                name=f"{Operation.TOOL} {name}",
                kind=otlp.Kind.INTERNAL,
                start_ns=trace.at(asked.began_s + asked.duration_s),
                end_ns=trace.at(answered.began_s),
                attributes=attributes,
            )


@dataclass(slots=True)
class Trace:
    """The spans and events of one episode, encoded."""

    start_ns: int
    end_ns: int
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    root: str = field(default_factory=lambda: secrets.token_hex(8))
    """The id of the episode's span."""
    spans: list[bytes] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)

    def at(self, seconds: float) -> int:
        """The time of a moment of the episode."""
        return self.start_ns + int(seconds * NS)

    def event(self, span: str, time_ns: int, attributes: otlp.Attributes) -> bytes:
        return otlp.event(
            trace=self.id,
            span=span,
            name=EVALUATION_EVENT,
            time_ns=time_ns,
            attributes=attributes,
        )


def _history(episode: Episode, turn: Turn) -> tuple[list[Message], Turn]:
    """The messages before those that the turn brought, and the turn with which its conversation began."""
    before: list[Message] = []
    while turn.parent is not None:
        turn = episode.turns[turn.parent]
        before = [*turn.new_messages, {"role": "assistant", **turn.message}, *before]
    return before, turn


def _answer(episode: Episode, index: int, id: object) -> tuple[Turn, str] | None:
    """The first later turn that brings the result of a tool call, and the result.

    Some models number the calls of each turn anew, so the search ends where the id is used again.
    """
    for turn in episode.turns[index + 1 :]:
        for message in turn.new_messages:
            if message.get("role") == "tool" and message.get("tool_call_id") == id:
                return turn, text_of(message.get("content"))
        if any(call.get("id") == id for call in turn.message.get("tool_calls") or ()):
            return None
    return None


def _verdict(episode: Episode, trace: Trace) -> Iterator[bytes]:
    """The episode's reward, or why it has none, and the reward of each function."""
    outcome = episode.outcome
    about: dict[str, otlp.Attribute] = {
        Name.EVALUATION: "reward",
        Name.SCORE: outcome.reward,
        Name.EXPLANATION: outcome.message[:MAX_MESSAGE] or None,
        Name.ERROR: outcome.error,
    }
    if outcome.success is not None:
        about[Name.LABEL] = "pass" if outcome.success else "fail"
    elif outcome.kind is OutcomeKind.ABSTAIN:
        about[Name.LABEL] = "abstained"
    yield trace.event(trace.root, trace.end_ns, about)
    for name, value in outcome.metrics.items():
        if name.startswith("reward/"):
            part: dict[str, otlp.Attribute] = {
                Name.EVALUATION: name.removeprefix("reward/"),
                Name.SCORE: value,
            }
            yield trace.event(trace.root, trace.end_ns, part)
