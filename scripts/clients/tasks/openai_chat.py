import json

from openai import OpenAI
from task import (
    API_KEY,
    BASE_URL,
    DESCRIPTION,
    ENDPOINT,
    INSTRUCTIONS,
    NAME,
    PARAMETERS,
    STREAMS,
    ask_each,
    calculate,
)

client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
FUNCTION = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
history: list = [{"role": "developer", "content": INSTRUCTIONS}] if ENDPOINT == "chat" else []


def chat(question: str) -> str | None:
    history.append({"role": "user", "content": question})
    while True:
        message = chat_message()
        history.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            result = calculate(**json.loads(call["function"]["arguments"]))
            history.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def chat_message() -> dict:
    request = {
        "model": "policy",
        "messages": history,
        "tools": [{"type": "function", "function": FUNCTION}],
    }
    if not STREAMS:
        done = client.chat.completions.create(**request)
        return done.choices[0].message.model_dump(exclude_none=True)
    text, calls = "", {}
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls.values()
        ]
    return message


def responses(question: str) -> str | None:
    history.append({"role": "user", "content": question})
    while True:
        request = {
            "model": "policy",
            "input": history,
            "instructions": INSTRUCTIONS,
            "tools": [{"type": "function", "strict": False, **FUNCTION}],
            "store": False,
        }
        if STREAMS:
            with client.responses.stream(**request) as stream:
                response = stream.get_final_response()
        else:
            response = client.responses.create(**request)
        # What `parse` and `stream` add to an item is not part of the API's input.
        history.extend(
            item.model_dump(exclude_none=True, exclude={"parsed_arguments"})
            for item in response.output
        )
        for item in history:
            for part in item["content"] if isinstance(item.get("content"), list) else ():
                part.pop("parsed", None)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            output = calculate(**json.loads(call.arguments))
            result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
            history.append(result)


def stored(question: str) -> str | None:
    """Ask a question by `previous_response_id`: the server knows what was said before."""
    said = [{"role": "user", "content": question}]
    while True:
        response = client.responses.create(
            model="policy",
            input=said,
            instructions=INSTRUCTIONS,
            tools=[{"type": "function", "strict": False, **FUNCTION}],
            previous_response_id=history[-1] if history else None,
        )
        history.append(response.id)
        said = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": calculate(**json.loads(item.arguments)),
            }
            for item in response.output
            if item.type == "function_call"
        ]
        if not said:
            return response.output_text


ask_each({"chat": chat, "responses": responses, "stored": stored}[ENDPOINT])
