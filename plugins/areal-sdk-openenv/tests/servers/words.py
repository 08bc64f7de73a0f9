"""A server of OpenEnv's own package whose actions are calls of tools. `python words.py PORT`."""

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Observation, State, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class Words(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("words")

        @server.tool
        def shout(word: str) -> str:
            """Say a word in capitals."""
            return word.upper()

        super().__init__(server)

    def reset(self, **parameters: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **more: Any) -> Observation:
        raise ValueError(f"no such action: {action}")

    @property
    def state(self) -> State:
        return State(episode_id="", step_count=0)


if __name__ == "__main__":
    app = create_app(Words, CallToolAction, CallToolObservation, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
