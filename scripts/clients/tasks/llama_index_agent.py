import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike
from task import API_KEY, BASE_URL, INSTRUCTIONS, QUESTIONS, STREAMS, calculate, check


def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


async def main() -> None:
    llm = OpenAILike(
        model="policy",
        api_base=BASE_URL,
        api_key=API_KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=32768,
    )
    agent = FunctionAgent(
        tools=[calculator], llm=llm, system_prompt=INSTRUCTIONS, streaming=STREAMS
    )
    memory = ChatMemoryBuffer.from_defaults(token_limit=32768, tokenizer_fn=str.split)
    check([str(await agent.run(question, memory=memory)) for question in QUESTIONS])


asyncio.run(main())
