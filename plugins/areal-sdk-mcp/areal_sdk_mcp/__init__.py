"""The tools of any MCP server, for agents (`McpServer`) and as an environment (`--env mcp`)."""

from areal_sdk import hookimpl
from areal_sdk_mcp.server import McpServer

__all__ = ["McpServer"]


@hookimpl
def register_environments(register):  # type: ignore[no-untyped-def]
    register("mcp", "areal_sdk_mcp.environment:McpEnvironment")
