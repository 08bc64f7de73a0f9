import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import API_KEY, BASE_URL, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check


async def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


async def main() -> None:
    client = OpenAIChatCompletionClient(
        model="policy",
        base_url=BASE_URL,
        api_key=API_KEY,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": "unknown",
        },
    )
    agent = AssistantAgent(
        "calculator",
        model_client=client,
        tools=[calculator],
        system_message=INSTRUCTIONS,
        model_client_stream=STREAMS,
        max_tool_iterations=6,
    )
    answers = []
    for question in QUESTIONS:
        async for event in agent.run_stream(task=question):
            if isinstance(event, TaskResult):
                answers.append(event.messages[-1].content)
    check(answers)


asyncio.run(main())
