"""Calls as text: what a session keeps of an answer without tokens. `sft` and `dpo` can learn from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_sdk.types import FinishReason, Message, Tool


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request as chat messages and further fields, whatever its wire format."""

    prompts: tuple[tuple[Message, ...], ...]
    """The conversation. There are several only if `/v1/completions` got several prompts."""
    tools: tuple[Tool, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Model, sampling, metadata and all other fields of the request."""
    previous_id: str | None = None
    """The id of the reply that the request continues."""

    def prompt_of(self, choice: int, num_choices: int) -> tuple[Message, ...]:
        """The conversation that a choice answers. Choices are numbered prompt by prompt."""
        if not self.prompts:
            return ()
        each = max(1, num_choices // len(self.prompts))
        return self.prompts[min(choice // each, len(self.prompts) - 1)]


@dataclass(frozen=True, slots=True)
class TextChoice:
    """One of the answers to a request. An answer that broke off has the finish reason `abort`."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True)
class TextReply:
    """The reply to one request."""

    id: str
    """The provider's id; empty if it gives none."""
    choices: tuple[TextChoice, ...]
    usage: Mapping[str, Any] = field(default_factory=dict)


class TextRecord(ABC):
    """The record of one call in its session."""

    reply_id: str
    """The gateway's own name of the reply, for `POST /v1/reward`: a provider's ids may repeat."""

    @abstractmethod
    def fault(self, what: str) -> None:
        """Note a failure of the provider: the episode is no zero, and is tried again."""

    @abstractmethod
    def miss_the_end(self, why: str) -> None:
        """Note that only the beginning of an answer is kept: its episode must not be learnt from."""

    @abstractmethod
    async def keep(self, read: Callable[[], TextReply | None], *, size: int) -> None:
        """Keep an answer of `size` bytes, a turn for each choice. A closed session keeps nothing.

        `read` makes the reply, in a thread if the call is large. It may find no reply, or raise for text that it cannot
        read: the session then notes this, and no error reaches the client, which already has its answer.
        """


def without_surrogates(value: Any) -> Any:
    """A JSON value with halves of surrogate pairs, which orjson refuses, replaced in its texts."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    return value
