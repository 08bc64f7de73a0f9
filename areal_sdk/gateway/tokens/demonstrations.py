"""Written conversations as tokens, as if the model had sampled its part. A warm-up imitates them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.sessions.canonical import canonical
from areal_sdk.gateway.tokens.renderer import Renderer, TemplateInput
from areal_sdk.trainer import Demonstration
from areal_sdk.types import Message, Tool

WEIGHT = "weight"
"""OpenAI's field of an assistant message in fine-tuning data: 0 makes it context."""


def as_context(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with none of them trained."""
    return tuple({**m, WEIGHT: 0} if m.get("role") == "assistant" else m for m in messages)


def to_demonstrations(
    messages: Sequence[Message], renderer: Renderer, *, tools: Sequence[Tool] = ()
) -> list[Demonstration]:
    """The assistant messages, trained as the model would have sampled them.

    Usually this is one sequence. If the chat template rewrites history, for example by dropping thoughts, the
    conversation goes on in a new sequence, as it would at the gateway.

    Raises ApiError for content that the gateway refuses.
    """
    messages = [canonical(m, where=f"messages[{index}]") for index, m in enumerate(messages)]
    sequences: list[_Sequence] = []
    for index, message in enumerate(messages):
        if message.get("role") != "assistant" or not message.get(WEIGHT, 1):
            continue
        chat = TemplateInput(tuple(messages[:index]), tuple(tools))
        if not (sequences and sequences[-1].ask(chat, renderer)):
            sequences.append(_Sequence(renderer.first(chat).tokens))
        sequences[-1].say(renderer.answer(chat, message), num_known=index + 1)
    return [Demonstration(sequence.tokens, tuple(sequence.mask)) for sequence in sequences]


@dataclass(slots=True)
class _Sequence:
    """The tokens of a conversation, turn after turn."""

    tokens: tuple[int, ...]
    mask: list[bool] = field(default_factory=list)
    num_known: int = 0
    """Number of messages that are tokens already."""

    def ask(self, chat: TemplateInput, renderer: Renderer) -> bool:
        """Add the messages that are new in `chat`. Returns False if the template cannot continue the sequence."""
        try:
            self.tokens = renderer.extend(self.tokens, chat, self.num_known).tokens
        except TemplateRefusalError:
            return False
        return True

    def say(self, answer: tuple[int, ...], *, num_known: int) -> None:
        self.mask += [False] * (len(self.tokens) - len(self.mask)) + [True] * len(answer)
        self.tokens += answer
        self.num_known = num_known
