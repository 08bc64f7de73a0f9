import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from task import API_KEY, BASE_URL, ENDPOINT, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check

set_tracing_disabled(True)


@function_tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


async def main() -> None:
    kind = OpenAIChatCompletionsModel if ENDPOINT == "chat" else OpenAIResponsesModel
    client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
    model = kind(model="policy", openai_client=client)
    agent = Agent(name="A", instructions=INSTRUCTIONS, tools=[calculator], model=model)
    history: list = []
    answers = []
    for question in QUESTIONS:
        said = [*history, {"role": "user", "content": question}]
        if STREAMS:
            result = Runner.run_streamed(agent, said)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, said)
        history = result.to_input_list()
        answers.append(result.final_output)
    check(answers)


asyncio.run(main())
