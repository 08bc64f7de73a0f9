"""The environment: the user's request, then the tools, until the model answers without a call."""

from collections.abc import Sequence

from agentdojo.agent_pipeline.agent_pipeline import load_system_message

from areal_sdk import Environment, Message, StepResult, Task
from areal_sdk_agentdojo.case import Case
from areal_sdk_agentdojo.ground_truth import needed_functions
from areal_sdk_agentdojo.world import World, as_tool, told


class AgentDojo(Environment):
    """Plays one case. It gives no reward: the reward `agentdojo` judges the episode.

    system_message: AgentDojo's own by default; "" for none.
    only_needed_tools: offer only the functions that the known solutions of the user's task and of the
        attacker's goal call, for models that cannot read all tools of a suite. The tasks become easier, so
        figures are no longer those of the benchmark.
    """

    def __init__(
        self, *, system_message: str | None = None, only_needed_tools: bool = False
    ) -> None:
        self._system_message = system_message
        self._only_needed_tools = only_needed_tools
        self._world: World | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        return self.begin(Case.of(task))

    async def step(self, message: Message) -> StepResult:
        messages = self.answer(message)
        return StepResult(messages, done=not messages)

    def begin(self, case: Case) -> list[Message]:
        """The opening messages of a case; `tools` and the world are then those of the case."""
        needed = needed_functions(case) if self._only_needed_tools else None
        self.tools = [
            as_tool(function)
            for function in case.suite.tools
            if needed is None or function.name in needed
        ]
        self._world = World.of(case)
        system = self._system_message
        if system is None:
            system = load_system_message(None)
        asked = {"role": "user", "content": case.user_task.PROMPT}
        return [{"role": "system", "content": system}, asked] if system else [asked]

    def answer(self, message: Message) -> list[Message]:
        """The results of the tool calls of a message; none if it has no calls."""
        assert self._world is not None, "an episode begins with its opening messages"
        return told(message, self._world.act(message))
