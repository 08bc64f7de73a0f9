from mirascope import llm
from task import API_KEY, BASE_URL, ENDPOINT, INSTRUCTIONS, STREAMS, ask_each, calculate


@llm.tool
def calculator(expression: str, digits: float = 0.0) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression, digits)


llm.register_provider("openai", scope="openai/", base_url=BASE_URL, api_key=API_KEY)
api = "completions" if ENDPOINT == "chat" else "responses"
model = llm.Model(f"openai/policy:{api}")
history: list = [llm.messages.system(INSTRUCTIONS)]


def finished(response):
    if STREAMS:
        for _ in response.chunk_stream():
            pass
    return response


def ask(question: str) -> str:
    history.append(llm.messages.user(question))
    call = model.stream if STREAMS else model.call
    response = finished(call(history, tools=[calculator]))
    while response.tool_calls:
        response = finished(response.resume(response.execute_tools()))
    history[:] = response.messages
    return response.text()


ask_each(ask)
