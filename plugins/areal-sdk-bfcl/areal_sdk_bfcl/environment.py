"""The environment: the user's requests one by one, and the functions of BFCL's APIs in between."""

from collections.abc import Sequence
from typing import Any

from areal_sdk import ConfigError, Environment, Message, StepResult, Task
from areal_sdk.environment import read_arguments
from areal_sdk.types import Tool
from areal_sdk_bfcl.entries import Entry, entry
from areal_sdk_bfcl.verdict import Judge
from areal_sdk_bfcl.world import Call, World

MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""BFCL's words of a turn that brings functions which were missing."""
MAX_STEPS = 20
"""Maximum number of answers with calls in a turn. At one more, BFCL ends the conversation as failed."""


class Bfcl(Environment):
    """Plays one entry, or its first turns. A message without calls ends a turn.

    The reward of a turn that is right is 1 / the number of turns that BFCL judges, so 1 for a right conversation.

    only_needed_tools: offer only the functions that the known solution of the played turns calls, for models that
        cannot read all functions of an API. Figures are then no longer those of the benchmark.
    """

    def __init__(self, *, only_needed_tools: bool = False) -> None:
        self._only_needed_tools = only_needed_tools
        self._entry: Entry | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        return self.begin(task)

    def begin(self, task: Task) -> list[Message]:
        """The opening messages; `tools` and the world are then those of the task."""
        played = entry(str(task.data["entry"]))
        self._entry = played
        self._num_turns = int(task.data.get("turns") or len(played.asked))
        if not 0 < self._num_turns <= len(played.asked):
            raise ConfigError(f"{played.id} has {len(played.asked)} turns, not {self._num_turns}")
        self._num_judged = sum(bool(known) for known in played.truth[: self._num_turns])
        self._turn = self._num_steps = 0
        self._world = World(played)
        self._judge = Judge(played)
        self._results: list[str] = []
        self._all_right = self._num_judged > 0
        self.tools = self._offered()
        return self._asked()

    async def step(self, message: Message) -> StepResult:
        if not (calls := message.get("tool_calls")):
            return self._end_turn()
        self._num_steps += 1
        told = [self._answer(call) for call in calls]
        if self._num_steps > MAX_STEPS:
            return StepResult(told, reward=0.0, done=True, success=False)
        return StepResult(told, reward=0.0)

    def known_calls(self) -> list[Call]:
        """The known solution of the turn that is played."""
        assert self._entry is not None, "an episode begins with its opening messages"
        return [self._world.read(written) for written in self._entry.truth[self._turn]]

    def _end_turn(self) -> StepResult:
        verdict = self._judge.agrees(self._turn, self._world, self._results)
        self._all_right &= verdict is not False
        reward = 1.0 / self._num_judged if verdict else 0.0
        self._turn += 1
        self._num_steps, self._results = 0, []
        if self._turn == self._num_turns:
            return StepResult(reward=reward, done=True, success=self._all_right)
        self.tools = self._offered()
        return StepResult(self._asked(), reward=reward)

    def _asked(self) -> list[Message]:
        assert self._entry is not None
        asked = self._entry.asked[self._turn]
        return [{"role": "user", "content": MORE_FUNCTIONS if asked is None else asked}]

    def _offered(self) -> list[Tool]:
        assert self._entry is not None
        tools = self._entry.offered(self._turn)
        if not self._only_needed_tools:
            return tools
        known = [call for turn in self._entry.truth[: self._num_turns] for call in turn]
        needed = {self._world.read(call).function for call in known}
        return [tool for tool in tools if tool["function"]["name"] in needed]

    def _answer(self, asked: dict[str, Any]) -> Message:
        return {"role": "tool", "tool_call_id": asked["id"], "content": self._carried_out(asked)}

    def _carried_out(self, asked: dict[str, Any]) -> str:
        """A call that cannot be read is told, and is no call: it leaves no result to be judged."""
        if (arguments := read_arguments(asked)) is None:
            return "Error during execution: the arguments are no JSON object"
        result = self._world.carry_out(Call(str(asked["function"]["name"]), arguments))
        self._results.append(result)
        return result
