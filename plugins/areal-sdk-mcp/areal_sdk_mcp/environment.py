"""The environment `mcp`: a question, the tools of a server, and an answer that a reward judges."""

from collections.abc import Sequence

from areal_sdk import Environment, Message, StepResult, Task
from areal_sdk_mcp.server import McpServer
from areal_sdk_shared.servers import SharedServers

SHARED: SharedServers[McpServer] = SharedServers()
"""The servers of stateless tools, by their options."""


class McpEnvironment(Environment):
    """The model calls tools until it answers without a call. Task's data: `question`, or `messages`.

    The environment gives no reward: name a reward function, such as `--reward contains_answer`.
    """

    def __init__(
        self,
        *,
        command: str = "",
        url: str = "",
        only: tuple[str, ...] = (),
        system: str = "",
        stateless: bool = False,
        max_turns: int = 8,
        start_timeout_s: float = 30.0,
        call_timeout_s: float = 30.0,
    ) -> None:
        """`stateless`: calls leave nothing behind, so the episodes of a worker share one server."""
        self._options = (command, url, only, start_timeout_s, call_timeout_s)
        self._make()  # says at once what is wrong with the options
        self._system = system
        self._stateless = stateless
        self._max_turns = max_turns
        self._num_turns = 0
        self._server: McpServer | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        if self._stateless:
            self._server = await SHARED.get(self._options, self._make)
        else:
            self._server = self._make()
            await self._server.start()
        self.tools = self._server.tools
        system = [{"role": "system", "content": self._system}] if self._system else []
        if "messages" in task.data:
            return [*system, *task.data["messages"]]
        return [*system, {"role": "user", "content": str(task.data["question"])}]

    async def step(self, message: Message) -> StepResult:
        assert self._server is not None, "reset comes first"
        self._num_turns += 1
        calls = message.get("tool_calls") or []
        if not calls:
            return StepResult(done=True)
        answers: list[Message] = []
        for call in calls:
            function = call["function"]
            text = await self._server.call(function["name"], function["arguments"] or "{}")
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        return StepResult(answers, done=self._num_turns >= self._max_turns)

    async def close(self) -> None:
        if self._server is not None and not self._stateless:
            await self._server.aclose()

    def _make(self) -> McpServer:
        command, url, only, start_timeout_s, call_timeout_s = self._options
        return McpServer(
            command=command,
            url=url,
            only=only,
            start_timeout_s=start_timeout_s,
            call_timeout_s=call_timeout_s,
        )
