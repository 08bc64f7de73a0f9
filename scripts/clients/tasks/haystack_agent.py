from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from task import API_KEY, BASE_URL, ENDPOINT, INSTRUCTIONS, STREAMS, ask_each, calculate


@tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


kind = OpenAIChatGenerator if ENDPOINT == "chat" else OpenAIResponsesChatGenerator
agent = Agent(
    chat_generator=kind(model="policy", api_base_url=BASE_URL, api_key=Secret.from_token(API_KEY)),
    tools=[calculator],
    streaming_callback=(lambda chunk: None) if STREAMS else None,
)
history: list = [ChatMessage.from_system(INSTRUCTIONS)]


def ask(question: str) -> str:
    history.append(ChatMessage.from_user(question))
    history[:] = agent.run(messages=history)["messages"]
    return history[-1].text


ask_each(ask)
