"""Three tools: with one parameter, with two, and with none."""

from areal_sdk.types import Tool


def tool(name: str, *parameters: str) -> Tool:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = (tool("calculator", "expression"), tool("search", "query", "limit"), tool("now"))
