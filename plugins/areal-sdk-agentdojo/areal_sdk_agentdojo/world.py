"""`World`: an environment of AgentDojo, in which the tool calls of chat messages are carried out."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentdojo.agent_pipeline.tool_execution import ToolsExecutor
from agentdojo.functions_runtime import Function, FunctionCall, FunctionsRuntime, TaskEnvironment
from agentdojo.types import get_text_content_as_str
from pydantic import ValidationError

from areal_sdk import Message
from areal_sdk.environment import read_arguments
from areal_sdk.types import Tool
from areal_sdk_agentdojo.case import Case
from areal_sdk_agentdojo.results import as_text


@dataclass(frozen=True, slots=True)
class Act:
    """One tool call that was carried out."""

    call: FunctionCall | None
    """The call as AgentDojo reads it; None for arguments that are no JSON object."""
    result: str
    """The text that the model gets: what the tool returned, or its error."""


class World:
    """One environment and its tools, which are AgentDojo's own code and reach nothing outside of it."""

    def __init__(self, environment: TaskEnvironment, runtime: FunctionsRuntime) -> None:
        self._environment = environment
        self._runtime = runtime
        self._tools = ToolsExecutor(partial(as_text, began=datetime.datetime.now()))

    @classmethod
    def of(cls, case: Case, *, injections: Mapping[str, str] | None = None) -> "World":
        """The world in which the user's task begins, with the case's injections or with others."""
        return cls(case.environment(injections), FunctionsRuntime(case.suite.tools))

    def act(self, message: Message) -> list[Act]:
        """Carry out the tool calls of an assistant message, in their order."""
        return [self._carried_out(call) for call in message.get("tool_calls") or ()]

    def _carried_out(self, asked: dict[str, Any]) -> Act:
        try:
            call = read_call(asked)
        except ValueError as error:
            return Act(None, f"ValidationError: {error}")
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        try:
            *_, messages, _ = self._tools.query("", self._runtime, self._environment, [said])
        except Exception as error:  # noqa: BLE001 - reading odd text or writing odd results
            return Act(call, f"{type(error).__name__}: {error}")
        told = messages[-1]
        return Act(call, told["error"] or get_text_content_as_str(told["content"]))


def read_call(asked: dict[str, Any]) -> FunctionCall:
    """A tool call of a chat message as AgentDojo's type; ValueError for arguments that are no object."""
    if (arguments := read_arguments(asked)) is None:
        raise ValueError("the arguments are no JSON object")
    try:
        return FunctionCall(function=asked["function"]["name"], args=arguments, id=asked.get("id"))
    except ValidationError:
        raise ValueError("the arguments have values that no tool takes") from None


def told(message: Message, acts: Sequence[Act]) -> list[Message]:
    """The tool messages that answer the calls of `message`."""
    return [
        {"role": "tool", "tool_call_id": asked["id"], "content": act.result}
        for asked, act in zip(message.get("tool_calls") or (), acts, strict=True)
    ]


def as_tool(function: Function) -> Tool:
    """The definition of a tool, as AgentDojo gives it to OpenAI's models."""
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters.model_json_schema(),
        },
    }
