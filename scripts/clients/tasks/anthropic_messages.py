from anthropic import Anthropic
from task import (
    API_KEY,
    DESCRIPTION,
    INSTRUCTIONS,
    NAME,
    PARAMETERS,
    ROOT_URL,
    STREAMS,
    ask_each,
    calculate,
)

client = Anthropic(base_url=ROOT_URL, api_key=API_KEY)
history: list = []


def ask(question: str) -> str:
    history.append({"role": "user", "content": question})
    while True:
        request = {
            "model": "policy",
            "max_tokens": 1000,
            "system": INSTRUCTIONS,
            "messages": history,
            "tools": [{"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}],
        }
        if STREAMS:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        history.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": b.id, "content": calculate(**b.input)}
            for b in message.content
            if b.type == "tool_use"
        ]
        if not results:
            return "".join(block.text for block in message.content if block.type == "text")
        history.append({"role": "user", "content": results})


ask_each(ask)
