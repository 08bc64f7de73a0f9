import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from task import API_KEY, BASE_URL, ENDPOINT, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check


def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


async def main() -> None:
    kind = OpenAIChatCompletionClient if ENDPOINT == "chat" else OpenAIChatClient
    client = kind(model="policy", base_url=BASE_URL, api_key=API_KEY)
    agent = Agent(client=client, instructions=INSTRUCTIONS, tools=[calculator])
    session = agent.create_session()
    answers = []
    for question in QUESTIONS:
        if STREAMS:
            answer = ""
            async for update in agent.run(question, session=session, stream=True):
                answer += update.text
        else:
            answer = (await agent.run(question, session=session)).text
        answers.append(answer)
    check(answers)


asyncio.run(main())
