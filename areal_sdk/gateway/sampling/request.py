"""The one request every wire format is translated into, and how sampling is decided for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, cast

from areal_sdk.engine import Sampling
from areal_sdk.types import Message, Tool

_LEADING = ("system", "developer")


class ToolUse(StrEnum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    use: ToolUse = ToolUse.AUTO
    name: str | None = None
    """The tool that must be called, when the client names one."""
    allowed: frozenset[str] | None = None
    """The only tools that may be called, when the client names some of those on offer."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for `num_choices` assistant messages, whatever protocol it came by."""

    messages: tuple[Message, ...] = ()
    """OpenAI chat messages; contents are strings."""
    prompt_tokens: tuple[int, ...] | None = None
    """Token ids taken as they are, instead of messages."""
    prompt_text: str | None = None
    """Raw text without a chat template, instead of messages."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end the answer, besides those that end every answer of the model."""
    num_choices: int = 1
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `Sampling` that the client set, and only those."""
    logprobs: bool = False
    num_top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None
    schema_field: str = "response_format"
    """The field of the request that asked for `json_schema`."""
    prefill: str = ""
    """The beginning of the answer, written by the client. The policy goes on from there."""
    drops_oldest: bool = False
    """Whether the oldest messages are left out if the context is too short for all of them."""
    policy: str = ""
    """The policy that answers, in a run with several."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as enable_thinking."""

    def with_prompt(self, prompt: Sequence[Message] | Sequence[int]) -> "ChatRequest":
        """This request for other messages, or for token ids taken as they are."""
        if all(isinstance(item, int) for item in prompt):
            return replace(self, prompt_tokens=tuple(cast(Sequence[int], prompt)))
        return replace(self, messages=tuple(cast(Sequence[Message], prompt)))


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to shorten a conversation: the `num_leading` first messages, and those from `start` on, stay."""

    num_leading: int
    start: int

    def of(self, request: ChatRequest) -> ChatRequest:
        messages = request.messages
        return replace(request, messages=(*messages[: self.num_leading], *messages[self.start :]))


def cuts_of(messages: Sequence[Message]) -> list[Cut]:
    """A cut before each question but the first, oldest first.

    Leading messages (system, developer) stay. No call is kept without its result, and no result without its call.
    """
    num_leading = next(
        (i for i, m in enumerate(messages) if m.get("role") not in _LEADING), len(messages)
    )
    later = range(num_leading + 1, len(messages))
    return [Cut(num_leading, index) for index in later if messages[index].get("role") == "user"]


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """The rule that decides how tokens are sampled.

    `override`: the run decides. Unmodified agents send temperature 0 and top-p, and RL needs the policy's own
    distribution. `respect`: the client decides. Tokens that are sampled in another way than the run's are context only.
    """

    mode: Literal["override", "respect"] = "override"
    temperature: float = 1.0
    trains_side_calls: bool = True
    """Whether turns such as a request for a title are trained; else they are context only
    (`side_calls` of the session)."""

    @property
    def keeps_seeds(self) -> bool:
        """Whether a client's seed is used. A client often sends one seed for all attempts at a task: with it, all would
        give the same answers."""
        return self.mode == "respect"

    def decide(self, asked: Mapping[str, Any]) -> Sampling:
        given = asked if self.mode == "respect" else {}
        return _computable(replace(Sampling(temperature=self.temperature), **given))

    def overridden(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The wishes of the client that the run overrides."""
        if self.mode == "respect":
            return {}
        given = self.decide(asked)
        return {name: value for name, value in asked.items() if value != getattr(given, name)}


_LEAST_TEMPERATURE = 1e-5
"""Lowest temperature to sample at. Below it a sample is the most likely token, and float32 overflows."""
_LEAST_TOP_P = 1e-6
"""Smallest top-p with a meaning. It is less than the probability of the most likely of a million
tokens, which is then the only choice."""
_MOST_TOP_K = 2**30
"""Largest top-k with a meaning: more than the tokens of any model."""


def _computable(sampling: Sampling) -> Sampling:
    """The same sampling settings in numbers that every engine accepts."""
    return replace(
        sampling,
        temperature=sampling.temperature if sampling.temperature >= _LEAST_TEMPERATURE else 0.0,
        top_p=max(sampling.top_p, _LEAST_TOP_P),
        top_k=sampling.top_k if sampling.top_k <= _MOST_TOP_K else 0,
    )
