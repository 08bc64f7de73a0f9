import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from task import (
    API_KEY,
    BASE_URL,
    ENDPOINT,
    INSTRUCTIONS,
    QUESTIONS,
    ROOT_URL,
    STREAMS,
    calculate,
    check,
)


def model():
    if ENDPOINT == "messages":
        provider = AnthropicProvider(base_url=ROOT_URL, api_key=API_KEY)
        return AnthropicModel("policy", provider=provider)
    kind = OpenAIChatModel if ENDPOINT == "chat" else OpenAIResponsesModel
    return kind("policy", provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))


async def main() -> None:
    agent = Agent(model(), system_prompt=INSTRUCTIONS)

    @agent.tool_plain
    def calculator(expression: str, digits: float = 0.0) -> str:
        """Evaluate an arithmetic expression."""
        return calculate(expression, digits)

    history: list = []
    answers = []
    for question in QUESTIONS:
        if STREAMS:
            # `run_stream` ends at the first text, also where calls follow it: iterate instead.
            async with agent.iter(question, message_history=history) as run:
                async for node in run:
                    if Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as events:
                            async for _ in events:
                                pass
                result = run.result
        else:
            result = await agent.run(question, message_history=history)
        history = result.all_messages()
        answers.append(result.output)
    check(answers)


asyncio.run(main())
