import asyncio

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function
from task import API_KEY, BASE_URL, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check


class Numbers:
    @kernel_function(name="calculator", description="Evaluate an arithmetic expression.")
    def calculator(self, expression: str, digits: float = 0.0) -> str:
        return calculate(expression, digits)


async def main() -> None:
    service = OpenAIChatCompletion(
        ai_model_id="policy", async_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
    )
    agent = ChatCompletionAgent(
        service=service, name="Calculator", instructions=INSTRUCTIONS, plugins=[Numbers()]
    )
    thread = None
    answers = []
    for question in QUESTIONS:
        answer = ""
        ask = agent.invoke_stream if STREAMS else agent.invoke
        async for response in ask(question, thread=thread):
            thread = response.thread
            answer += str(response.message.content)
        answers.append(answer)
    check(answers)


asyncio.run(main())
