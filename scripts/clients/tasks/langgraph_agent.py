from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import (
    API_KEY,
    BASE_URL,
    ENDPOINT,
    INSTRUCTIONS,
    ROOT_URL,
    STREAMS,
    ask_each,
    calculate,
)


@tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


def model():
    if ENDPOINT == "messages":
        return ChatAnthropic(model="policy", base_url=ROOT_URL, api_key=API_KEY, streaming=STREAMS)
    return ChatOpenAI(
        model="policy",
        base_url=BASE_URL,
        api_key=API_KEY,
        streaming=STREAMS,
        use_responses_api=ENDPOINT == "responses",
    )


agent = create_agent(model(), [calculator], system_prompt=INSTRUCTIONS)
history: list = []


def ask(question: str) -> str:
    global history
    said = {"messages": [*history, {"role": "user", "content": question}]}
    history = agent.invoke(said)["messages"]
    return history[-1].text


ask_each(ask)
