"""Schemas that the makers of the APIs publish, and the fields that our page says are honoured."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import openai.types as openai
from openai.types import chat, responses
from openai.types.chat import chat_completion, chat_completion_chunk
from pydantic import BaseModel, TypeAdapter, ValidationError

OURS = {"reasoning_content", "max_model_len"}
"""Fields that the gateway adds on purpose, as others do."""
OPEN_RESPONSES = {"store", "presence_penalty", "frequency_penalty"}
"""Required by the Open Responses specification, sent by OpenAI, and not in its SDK's model."""
OLDER_SDK = {"ResponseFunctionCallArgumentsDoneEvent": {"name"}}
"""openai 2 requires it, openai 3 has it no more: we serve both."""
PUBLISHED: dict[type[BaseModel], set[str]] = {
    chat.ChatCompletionMessage: {"content", "refusal"},
    chat_completion.Choice: {"logprobs"},
    chat_completion_chunk.Choice: {"finish_reason"},
    chat.ChatCompletionTokenLogprob: {"bytes"},
    openai.CompletionChoice: {"logprobs"},
    responses.Response: {
        *("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")
    },
    responses.ResponseErrorEvent: {"code", "param"},
}
"""Null or not, OpenAI's published schema requires them; the SDK's models do not."""


def problems(document: Any, model: Any) -> list[str]:
    """Places where a JSON document is not what `model` says, to the letter."""
    name = model.__name__ if isinstance(model, type) else "document"
    try:
        value = _adapter(model).validate_json(json.dumps(document), strict=True)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        return [f"{name}.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors]
    return list(_extra_or_absent(value, name))


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _extra_or_absent(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _extra_or_absent(item, f"{at}[{index}]")
    elif isinstance(value, BaseModel):
        known = OURS | OPEN_RESPONSES | OLDER_SDK.get(type(value).__name__, set())
        for name in (value.model_extra or {}).keys() - known:
            yield f"{at}.{name} is extra"
        for name in PUBLISHED.get(type(value), set()) - value.model_fields_set:
            yield f"{at}.{name} is absent"
        for name in value.model_fields_set & type(value).model_fields.keys():
            yield from _extra_or_absent(getattr(value, name), f"{at}.{name}")


def event_model(union: Any, event: dict[str, Any]) -> Any:
    """The one model of the union that describes events of this type."""
    if isinstance(union, type):
        return union
    members = get_args(union)
    while get_origin(members[0]) is not None:  # Annotated[Union[...], ...]
        members = get_args(members[0])
    named = {}
    for member in members:
        if isinstance(member, type) and issubclass(member, BaseModel):
            kind = member.model_fields["type"].annotation
            assert get_origin(kind) is Literal
            named.update(dict.fromkeys(get_args(kind), member))
    return named[event["type"]]


def events_of(stream: str) -> list[dict[str, Any]]:
    """The data of each event; its name, where it has one, is its type."""
    found = []
    for block in stream.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines.get("data") not in (None, "[DONE]"):
            data = json.loads(lines["data"])
            assert lines.get("event") in (None, data.get("type"))
            found.append(data)
    return found


PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def _fields(ending: str) -> list[str]:
    """The names in the first column of the chat table's row that ends so."""
    table = PAGE.partition("### `POST /v1/chat/completions`")[2].partition("###")[0]
    (row,) = (line for line in table.splitlines() if line.endswith(f"{ending} |"))
    return re.findall(r"`([a-z_]+)`", row.partition(" | ")[0])


HONOURED = {*_fields("honoured"), *_fields("honoured, or overridden as above")}
