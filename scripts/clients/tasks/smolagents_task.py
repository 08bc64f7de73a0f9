"""The common parts of both smolagents agents: the calculator, the model and the way to ask."""

from smolagents import MultiStepAgent, OpenAIServerModel, tool
from task import API_KEY, BASE_URL, STREAMS, ask_each, calculate


@tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: what to evaluate
        digits: how many to show
    """
    return calculate(expression, digits)


def play(kind: type[MultiStepAgent]) -> None:
    model = OpenAIServerModel(model_id="policy", api_base=BASE_URL, api_key=API_KEY)
    agent = kind(tools=[calculator], model=model, max_steps=6, stream_outputs=STREAMS)
    ask_each(lambda question: str(agent.run(question, reset=False)))
