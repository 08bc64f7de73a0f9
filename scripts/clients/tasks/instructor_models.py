import instructor
from openai import OpenAI
from pydantic import BaseModel, field_validator
from task import API_KEY, BASE_URL, INSTRUCTIONS, STREAMS, ask_each, calculate


class Answer(BaseModel):
    """The answer to the question."""

    text: str

    @field_validator("text")
    @classmethod
    def must_answer(cls, text: str) -> str:
        if "answer is" not in text:
            raise ValueError(f"{calculate(text)} is no answer")
        return text


client = instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=API_KEY))
history: list = [{"role": "system", "content": INSTRUCTIONS}]


def keep(**request) -> None:
    """The answers that were refused stay in the conversation."""
    history[:] = request["messages"]


client.on("completion:kwargs", keep)


def ask(question: str) -> str:
    asked = {
        "model": "policy",
        "messages": [*history, {"role": "user", "content": question}],
        "response_model": Answer,
        "max_retries": 4,
    }
    if STREAMS:
        *_, answer = client.create_partial(**asked)
        history.append({"role": "assistant", "content": answer.model_dump_json()})
    else:
        answer, completion = client.create_with_completion(**asked)
        message = completion.choices[0].message
        history.append(message.model_dump())
        for call in message.tool_calls:
            history.append({"role": "tool", "tool_call_id": call.id, "content": "Noted."})
    return answer.text


ask_each(ask)
