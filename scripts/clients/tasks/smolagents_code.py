from smolagents import CodeAgent, OpenAIServerModel, tool
from task import API_KEY, BASE_URL, STREAMS, ask_each, calculate


@tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: what to evaluate
        digits: how many to show
    """
    return calculate(expression, digits)


model = OpenAIServerModel(model_id="policy", api_base=BASE_URL, api_key=API_KEY)
agent = CodeAgent(tools=[calculator], model=model, max_steps=6, stream_outputs=STREAMS)


def ask(question: str) -> str:
    return str(agent.run(question, reset=False))


ask_each(ask)
