"""A check of a recording: its own answers lead through it, message by message."""

from areal_sdk import Message, Task
from areal_sdk_cassettes.environment import CassetteEnvironment
from areal_sdk_cassettes.recording import Recording


async def replay(task: Task) -> str:
    """The first difference between a recording and the episode in which its own answers are given; empty if none."""
    world = CassetteEnvironment()
    played: list[Message] = [*await world.reset(task)]
    recording = Recording.of(task)
    answers = recording.answers
    for number, answer in enumerate(answers, start=1):
        result = await world.step(answer)
        played += [answer, *result.messages]
        if result.done and number < len(answers):
            return f"the episode ends at message {len(played) - 1}, and the recording goes on"
    recorded = list(task.data["messages"])[: recording.num_messages]
    for at, (one, other) in enumerate(zip(recorded, played, strict=False)):
        if _said(one) != _said(other):
            return f"message {at} is {_said(one)!r:.80} in the recording, and {_said(other)!r:.80} when it is played"
    if len(recorded) != len(played):
        return f"the recording has {len(recorded)} messages, and {len(played)} when it is played"
    return ""


def _said(message: Message) -> tuple[object, ...]:
    return message["role"], message.get("content"), message.get("tool_call_id")
