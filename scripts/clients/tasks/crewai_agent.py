from crewai import LLM, Agent
from crewai.tools import tool
from task import API_KEY, BASE_URL, INSTRUCTIONS, STREAMS, ask_each, calculate


@tool("calculator")
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


llm = LLM(model="openai/policy", base_url=BASE_URL, api_key=API_KEY, stream=STREAMS)
agent = Agent(
    role="Calculator", goal=INSTRUCTIONS, backstory="You know numbers.", llm=llm, tools=[calculator]
)
history: list = []


def ask(question: str) -> str:
    history.append({"role": "user", "content": question})
    result = agent.kickoff(history)
    history[:] = [m for m in result.messages if m["role"] != "system"]  # which it adds itself
    return result.raw


ask_each(ask)
