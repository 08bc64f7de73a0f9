"""The environment `openenv`: the world of a server, its actions as tools, its rewards as rewards of turns."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from areal_sdk import ConfigError, Environment, Message, StepResult, Task
from areal_sdk_openenv.actions import LIST_TOOLS, action_of, has_tools, text_of, tool_of, tools_of
from areal_sdk_openenv.connection import Connection, RefusedError, Seen
from areal_sdk_openenv.server import PORT, SHARED, Server

INSTRUCTION = "Act in this environment."


class OpenEnv(Environment):
    """One session of an OpenEnv server. Task's data: `reset`, what the server's `reset` gets; `prompt` or `messages`,
    what stands before the first observation.
    """

    def __init__(
        self,
        *,
        url: str = "",
        command: str = "",
        text_field: str = "",
        system: str = "",
        max_turns: int = 16,
        idle_reward: float = 0.0,
        start_timeout_s: float = 50.0,
        call_timeout_s: float = 30.0,
        wait_s: float = 50.0,
    ) -> None:
        """Options.

        text_field: the field of an action that the model's whole answer fills, in place of a tool.
        idle_reward: the reward of an answer without an action, which ends the episode, and of an episode whose actions
            were all refused. Choose one below what losing costs. Where the server has tools of its own, an answer
            without a call is the last one, and the server's rewards or reward functions judge it.
        wait_s: seconds to wait for a session of a server that has none free.
        """
        if bool(url) == bool(command):
            raise ConfigError(
                f"[env.openenv] url = {url!r}, command = {command!r}: give the address of an OpenEnv server, or "
                "the command that starts one"
            )
        if command and PORT not in command:
            raise ConfigError(
                f"[env.openenv] command = {command!r}: write {PORT} where the server reads its port"
            )
        self._key = url, command
        self._make = partial(Server, url, command, start_timeout_s=start_timeout_s)
        self._text_field = text_field
        self._system = system
        self._max_turns = max_turns
        self._idle_reward = idle_reward
        self._timeouts = {"call_timeout_s": call_timeout_s, "wait_s": wait_s}
        self._num_turns = 0
        self._num_accepted = 0
        self._calls_tools = False
        self._connection: Connection | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        server = await SHARED.get(self._key, self._make)
        self._connection = Connection(server.url, **self._timeouts, on_silence=server.check)
        first = await self._connection.reset(task.data.get("reset", {}))
        if not self._text_field:
            self.tools = await self._list_tools(server)
        return self._opening(task.data, first)

    async def step(self, message: Message) -> StepResult:
        self._num_turns += 1
        is_last = self._num_turns >= self._max_turns
        if self._text_field:
            seen, said = await self._act({self._text_field: message.get("content") or ""})
            return self._result([{"role": "user", "content": said}], [seen], is_last=is_last)
        if not (calls := message.get("tool_calls")):
            return StepResult(reward=None if self._calls_tools else self._idle_reward, done=True)
        answers: list[Message] = []
        found: list[Seen | None] = []
        for call in calls:
            if any(seen is not None and seen.done for seen in found):
                said = "error: the episode was over before this call"
            else:
                seen, said = await self._called(call)
                found.append(seen)
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        return self._result(answers, found, is_last=is_last)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()

    async def _list_tools(self, server: Server) -> Sequence[dict[str, Any]]:
        assert self._connection is not None
        schema = (await server.schema(self._connection.schema))["action"]
        self._calls_tools = has_tools(schema)
        if not self._calls_tools:
            return [tool_of(schema, description=INSTRUCTION)]
        return tools_of((await self._connection.step(LIST_TOOLS)).observation)

    def _opening(self, data: Mapping[str, Any], first: Seen) -> Sequence[Message]:
        system = [{"role": "system", "content": self._system}] if self._system else []
        before = list(data.get("messages") or ())
        said = "\n\n".join(filter(None, [data.get("prompt"), text_of(first.observation)]))
        if before and not first.observation:
            return [*system, *before]
        return [*system, *before, {"role": "user", "content": said}]

    async def _called(self, call: dict[str, Any]) -> tuple[Seen | None, str]:
        try:
            action = action_of(call, self.tools, calls_tools=self._calls_tools)
        except RefusedError as exc:
            return None, f"error: {exc}"
        return await self._act(action)

    async def _act(self, action: dict[str, Any]) -> tuple[Seen | None, str]:
        """The observation and its text; without an observation, the reason why the action was refused."""
        assert self._connection is not None
        try:
            seen = await self._connection.step(action)
        except RefusedError as exc:
            return None, f"error: {exc}"
        return seen, text_of(seen.observation)

    def _result(
        self, answers: Sequence[Message], found: Sequence[Seen | None], *, is_last: bool
    ) -> StepResult:
        """The result of a turn. Its reward is the sum of what its actions earned; None if the server gave none."""
        accepted = [seen for seen in found if seen is not None]
        self._num_accepted += len(accepted)
        rewards = [seen.reward for seen in accepted if seen.reward is not None]
        if is_last and not self._num_accepted and not self._calls_tools:
            rewards = [self._idle_reward]
        is_over = is_last or any(seen.done for seen in accepted)
        return StepResult(answers, sum(rewards) if rewards else None, done=is_over)
