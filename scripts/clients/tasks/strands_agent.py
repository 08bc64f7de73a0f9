from strands import Agent, tool
from strands.models.openai import OpenAIModel
from task import API_KEY, BASE_URL, INSTRUCTIONS, STREAMS, ask_each, calculate


@tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: what to evaluate
        digits: how many to show
    """
    return calculate(expression, digits)


model = OpenAIModel(
    client_args={"base_url": BASE_URL, "api_key": API_KEY},
    model_id="policy",
    streaming=STREAMS,
)
agent = Agent(model=model, tools=[calculator], system_prompt=INSTRUCTIONS, callback_handler=None)


def ask(question: str) -> str:
    return str(agent(question))


ask_each(ask)
