"""Results of tools as text, the same in every process and at every time of day.

AgentDojo stamps what a tool writes with the clock, and keeps the guests of a new event in the order of Python's hashes.
Two attempts at a task would then read different texts, and nothing could be played again.
"""

import datetime
from typing import Any

import yaml  # type: ignore[import-untyped]
from agentdojo.agent_pipeline.tool_execution import tool_result_to_str

TODAY = datetime.datetime(2024, 5, 15, 12)
"""The time at which tools write: noon of the day on which AgentDojo's calendars stand."""
WITHOUT_ORDER = ("participants", "recipients")


def as_text(result: Any, *, began: datetime.datetime) -> str:
    """AgentDojo's text of a result, in which each time since `began` is TODAY."""
    return str(
        tool_result_to_str(result, dump_fn=lambda data: yaml.safe_dump(_steady(data, began)))
    )


def _steady(value: Any, began: datetime.datetime, key: str = "") -> Any:
    match value:
        case dict():
            return {name: _steady(item, began, str(name)) for name, item in value.items()}
        case list():
            items = [_steady(item, began) for item in value]
            return sorted(items) if key in WITHOUT_ORDER else items
        case datetime.datetime() if value.tzinfo is None and value >= began:
            return TODAY
    return value
