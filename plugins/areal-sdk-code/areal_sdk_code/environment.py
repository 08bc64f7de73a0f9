"""Tasks that a model may solve with the Python tool."""

from collections.abc import Sequence

from areal_sdk import Environment, Message, StepResult, Task
from areal_sdk_code.tool import PythonTool
from areal_sdk_sandbox import Isolation, Limits


class PythonToolEnvironment(Environment):
    """The model may run programs and then answers. The run's rewards judge the answer.

    The task's data: `question`, and whatever the rewards read.
    """

    tools = (PythonTool.definition,)

    def __init__(
        self,
        *,
        field: str = "question",
        max_calls: int = 4,
        timeout_s: float = 5.0,
        memory_mb: int = 512,
        isolation: Isolation = "auto",
    ) -> None:
        limits = Limits(wall_s=timeout_s, cpu_s=timeout_s, memory_mb=memory_mb)
        self._tool = PythonTool(limits, isolation=isolation)
        self._field = field
        self._num_left = max_calls

    async def reset(self, task: Task) -> Sequence[Message]:
        if self._field not in task.data:
            known = ", ".join(sorted(task.data)) or "nothing"
            raise ValueError(f"task {task.id!r} has no data[{self._field!r}]; it has: {known}")
        return [{"role": "user", "content": str(task.data[self._field])}]

    async def step(self, message: Message) -> StepResult:
        calls = message.get("tool_calls") or []
        if not calls:
            return StepResult(done=True)
        answers = []
        for call in calls:
            answers.append(
                {"role": "tool", "tool_call_id": call["id"], "content": await self._answer(call)}
            )
        return StepResult(answers)

    async def _answer(self, call: Message) -> str:
        function = call["function"]
        if function.get("name") != self._tool.name:
            return f"error: the only tool is {self._tool.name}"
        if self._num_left == 0:
            return "error: no calls are left: answer now"
        self._num_left -= 1
        return await self._tool.call(function.get("arguments") or "")
