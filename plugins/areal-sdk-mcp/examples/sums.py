"""Sums with the tool of an MCP server: the model calls `add`, and then says the result.

    areal-sdk train examples/sums.py --config examples/sums.toml

An example stands before the question. The held-out sums are never trained.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from areal_sdk import Message, Task
from areal_sdk_mcp.environment import McpEnvironment

SERVER = Path(__file__).with_name("calculator.py")
EXAMPLES = ((11, 22),)


class Sums(McpEnvironment):
    """Calls leave nothing behind in the server, so all episodes share one."""

    def __init__(self) -> None:
        super().__init__(command=f"{sys.executable} {SERVER}", stateless=True, max_turns=3)


def tasks(split: str) -> Iterator[Task]:
    generator = random.Random(f"sums {split}")
    low, high = (10, 50) if split == "train" else (50, 100)
    for number in range(200):
        a, b = generator.randrange(low, high), generator.randrange(low, high)
        question = {"role": "user", "content": f"What is {a}+{b}?"}
        data = {"messages": [*examples(), question], "answer": a + b}
        yield Task(f"{split}-{number}", data)


def examples() -> Iterator[Message]:
    for a, b in EXAMPLES:
        call = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
        yield {"role": "user", "content": f"What is {a}+{b}?"}
        yield {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call", "type": "function", "function": call}],
        }
        yield {"role": "tool", "tool_call_id": "call", "content": str(a + b)}
        yield {"role": "assistant", "content": str(a + b)}
