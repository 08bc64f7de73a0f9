import json

import litellm
from task import (
    API_KEY,
    BASE_URL,
    DESCRIPTION,
    NAME,
    PARAMETERS,
    STREAMS,
    ask_each,
    calculate,
)

TOOL = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
history: list = []


def ask(question: str) -> str | None:
    history.append({"role": "user", "content": question})
    while True:
        response = litellm.completion(
            model="openai/policy",
            api_base=BASE_URL,
            api_key=API_KEY,
            messages=history,
            tools=[{"type": "function", "function": TOOL}],
            stream=STREAMS,
        )
        if STREAMS:
            response = litellm.stream_chunk_builder(list(response), messages=history)
        message = response.choices[0].message
        history.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": result})


ask_each(ask)
