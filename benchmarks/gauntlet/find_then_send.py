"""Two tools in order: find somebody's number, then send a message to this number. For smollm2."""

import json
import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

TRAINED = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jane", "Karl", "Lea")
HELD_OUT = ("Max", "Nora", "Otto", "Pia")
EXAMPLE = ("Zoe", 512)


def tool(name: str, argument: str) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


class FindThenSend(Environment):
    """Half of the reward is for finding, half for sending to the number that was found."""

    tools = (tool("find", "name"), tool("send", "number"))

    async def reset(self, task: Task) -> Sequence[Message]:
        self.name, self.number = task.data["name"], str(task.data["number"])
        self.has_found = False
        return [*example(*EXAMPLE), {"role": "user", "content": f"Write to {self.name}."}]

    async def step(self, message: Message) -> StepResult:
        calls = message.get("tool_calls") or []
        if not self.has_found:
            self.has_found = len(calls) == 1 and arguments_of(calls[0]) == ("find", self.name)
            if not self.has_found:
                return StepResult(reward=0.0, done=True, success=False)
            answer = {"role": "tool", "tool_call_id": calls[0]["id"], "content": self.number}
            return StepResult([answer], reward=0.5)
        is_right = len(calls) == 1 and arguments_of(calls[0]) == ("send", self.number)
        return StepResult(reward=0.5 * is_right, done=True, success=is_right)


def arguments_of(call: Message) -> tuple[str, str] | None:
    """The tool and the one argument of a call."""
    try:
        [value] = json.loads(call["function"]["arguments"]).values()
    except (ValueError, AttributeError):
        return None
    return call["function"]["name"], str(value)


def example(name: str, number: int) -> list[Message]:
    def call(tool: str, **arguments: str) -> Message:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": tool, "type": "function", "function": function}],
        }

    return [
        {"role": "user", "content": f"Write to {name}."},
        call("find", name=name),
        {"role": "tool", "tool_call_id": "find", "content": str(number)},
        call("send", number=str(number)),
        {"role": "tool", "tool_call_id": "send", "content": "sent"},
    ]


def tasks(split: str) -> Iterator[Task]:
    generator = random.Random(split)
    names = TRAINED if split == "train" else HELD_OUT
    for number in range(500 if split == "train" else 100):
        data = {"name": generator.choice(names), "number": generator.randrange(100, 1000)}
        yield Task(id=f"{split}-{number}", data=data)
