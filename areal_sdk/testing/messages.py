"""Assistant messages and episodes for tests."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.types import Episode, Message, Outcome, Task, Turn


def tool_call(name: str, **arguments: Any) -> str:
    """The text of a tool call as the `tiny` model's template has it, for scripted replies."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def assistant(text: str | None = None, *calls: tuple[str, Mapping[str, Any] | str]) -> Message:
    """An assistant message with tool calls: `assistant(None, ("add", {"a": 1, "b": 2}))`.

    Arguments given as text are sent as they are, malformed or not.
    """
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


def make_episode(
    messages: Sequence[Message] | str | None,
    *,
    data: Mapping[str, Any] | None = None,
    truncated: bool = False,
) -> Episode:
    """A finished, unscored episode: its messages, or just its final text; None: no turn at all.

    >>> make_episode("The answer is 4.", data={"answer": 4}).final_text
    'The answer is 4.'
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": "?"}, assistant(messages)]
    turns: list[Turn] = []
    new: list[Message] = []
    prompt: tuple[int, ...] = (1,)
    for message in messages or ():
        if message["role"] != "assistant":
            new.append(message)
            continue
        output = (2, 3)
        turns.append(
            Turn(
                new_tokens=prompt,
                output_tokens=output,
                logprobs=(-0.5, -0.5),
                versions=(0, 0),
                message=message,
                new_messages=tuple(new),
                parent=len(turns) - 1 if turns else None,
            )
        )
        prompt, new = (*prompt, *output, 4), []
    return Episode(
        id="episode",
        task=Task("task", dict(data or {})),
        turns=tuple(turns),
        outcome=Outcome.abstained("not scored yet"),
        truncated=truncated,
    )
