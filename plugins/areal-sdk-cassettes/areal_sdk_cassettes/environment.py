"""The environment `cassette`: the tools of a recorded conversation answer as they did when it was recorded."""

from collections.abc import Sequence
from typing import Literal

from areal_sdk import Environment, Message, StepResult, Task
from areal_sdk_cassettes.recording import Playback, Recording

UNSEEN = "error: this call is not in the recording"
"""The result of a call that is not recorded."""


class CassetteEnvironment(Environment):
    """A recorded conversation, played again. Task's data: `messages` and `tools`, as a row of `areal-sdk sft`."""

    def __init__(self, *, unseen: Literal["end", "answer"] = "end") -> None:
        """Options.

        unseen: what follows a call that is not recorded. `end`: the episode ends, and the reward `cassette` abstains.
            `answer`: the model reads an error as the call's result and goes on.
        """
        self._ends_at_unseen = unseen == "end"
        self._replies: list[Sequence[Message]] = []
        self._playback: Playback | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        recording = Recording.of(task)
        self.tools = recording.tools
        self._replies = list(recording.replies)
        self._playback = Playback(recording)
        return list(recording.opening)

    async def step(self, message: Message) -> StepResult:
        assert self._playback is not None, "reset comes first"
        calls = message.get("tool_calls")
        if not calls:
            return StepResult(self._replies.pop(0)) if self._replies else StepResult(done=True)
        found = [self._playback.result(call) for call in calls]
        results = [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": UNSEEN if result is None else result,
            }
            for call, result in zip(calls, found, strict=True)
        ]
        has_left = any(result is None for result in found)
        return StepResult(results, done=has_left and self._ends_at_unseen)
