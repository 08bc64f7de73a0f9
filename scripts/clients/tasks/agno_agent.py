from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAILike, OpenResponses
from task import API_KEY, BASE_URL, ENDPOINT, INSTRUCTIONS, STREAMS, ask_each, calculate


def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


kind = OpenAILike if ENDPOINT == "chat" else OpenResponses
agent = Agent(
    model=kind(id="policy", base_url=BASE_URL, api_key=API_KEY),
    tools=[calculator],
    instructions=INSTRUCTIONS,
    db=InMemoryDb(),
    session_id="episode",
    add_history_to_context=True,
    telemetry=False,
)


def ask(question: str) -> str:
    if not STREAMS:
        return agent.run(question).content
    chunks = agent.run(question, stream=True)
    return "".join(chunk.content or "" for chunk in chunks if chunk.event == "RunContent")


ask_each(ask)
