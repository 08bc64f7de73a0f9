"""The schemas of bodies in the OpenAPI document: those of OpenAI and Anthropic, as far as supported.

A request is described by its parser: the parser reads a small body, and every field that it asks for is in the schema.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.wire.anthropic_reply import MessagesReply
from areal_sdk.gateway.wire.anthropic_request import parse as parse_messages
from areal_sdk.gateway.wire.chat import parse as parse_chat
from areal_sdk.gateway.wire.completions import CompletionsReply
from areal_sdk.gateway.wire.fields import (
    LARGEST_BIAS,
    LARGEST_INTEGER,
    LONGEST_STOP,
    MOST_STOPS,
    Fields,
)
from areal_sdk.gateway.wire.responses.items import ResponseStore
from areal_sdk.gateway.wire.responses.request import INCLUDABLE, parse_count
from areal_sdk.gateway.wire.responses.request import parse as parse_response

_T = TypeVar("_T")
Schema = dict[str, Any]


def schemas_by_name() -> dict[str, Schema]:
    return {
        **dict(_requests()),
        **_reply_schemas(),
        **_control_schemas(),
    }


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", /, **properties: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _integer(least: int, most: int | None = None) -> Schema:
    limit = {} if most is None else {"maximum": most}
    return {"type": "integer", "minimum": least, **limit}


_ANY: Schema = {}
_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LIMIT: Schema = {"type": "integer", "minimum": 1}
_FLAG: Schema = {"type": "boolean"}
_MAP: Schema = {"type": "object"}
_MAPS: Schema = _list(_MAP)

_ITEM_TYPES: Schema = {"enum": ["reasoning", "message", "function_call", "custom_tool_call"]}
_STOPS: Schema = {
    **_list({**_TEXT, "maxLength": LONGEST_STOP}),
    "maxItems": MOST_STOPS,
}
_STOP: Schema = {"anyOf": [_STOPS["items"], _STOPS]}
_MESSAGES: Schema = {**_list(_object("role", role=_TEXT, content=_ANY)), "minItems": 1}

_TYPES: dict[type, Schema] = {str: _TEXT, bool: _FLAG, dict: _MAP, list: _MAPS}
_SHAPES: dict[str, Schema] = {
    "messages": _MESSAGES,
    "stop": _STOP,
    "stop_sequences": _STOPS,
    "logit_bias": {"type": "object", "additionalProperties": _number(-LARGEST_BIAS, LARGEST_BIAS)},
    "input": {"anyOf": [_TEXT, _MAPS]},
    "include": _list({"enum": [*INCLUDABLE]}),
}
"""Schemas of fields that hold more than plain values: `_Described` does not see which parts of them are read."""


class _Described(Fields):
    """Notes the fields that a parser asks for. They are the fields that a client may send."""

    def __init__(self, body: Schema) -> None:
        super().__init__(body)
        self.properties: dict[str, Schema] = {}

    def _describe(self, name: str, schema: Schema) -> None:
        known = _SHAPES.get(name) or self.properties.get(name)
        self.properties[name] = known or schema

    def get(self, name: str) -> Any:
        self._describe(name, _ANY)
        return super().get(name)

    def holds_any(self, names: Collection[str]) -> bool:
        super().holds_any(names)
        return True

    def accept(self, *names: str) -> None:
        for name in names:
            self.get(name)

    def accept_with_notice(self, *names: str) -> None:
        self._known.update(names)

    def refuse(self, name: str, why: str, *, unless: Collection[Any] = ()) -> None:
        self._known.add(name)

    def integer(self, name: str, *, least: int, most: int = LARGEST_INTEGER) -> int | None:
        lower = {} if least < -LARGEST_INTEGER else {"minimum": least}
        upper = {} if most == LARGEST_INTEGER else {"maximum": most}
        self._describe(name, {"type": "integer", **lower, **upper})
        return super().integer(name, least=least, most=most)

    def number(self, name: str, *, least: float, most: float | None = None) -> float | None:
        upper = {} if most is None else {"maximum": most}
        self._describe(name, {"type": "number", "minimum": least, **upper})
        return super().number(name, least=least, most=most)

    def choice(self, name: str, known: Collection[str]) -> str | None:
        self._describe(name, {"enum": [*known]})
        return super().choice(name, known)

    def _typed(self, name: str, kind: type[_T], what: str) -> _T | None:
        self._describe(name, _TYPES[kind])
        return super()._typed(name, kind, what)


_NOBODY: Any = SimpleNamespace(new_reply_id=str)
"""A stand-in for the session and for the tokenizer: a parser only asks it for the id of a reply."""
_HI: Schema = {"messages": [{"role": "user", "content": "Hi"}]}
_SAID: Schema = {"input": "Hi", "instructions": "Be brief."}

_PARSERS: dict[str, tuple[Schema, Callable[[Fields], object]]] = {
    "ChatRequest": ({"model": "m", **_HI}, parse_chat),
    "CompletionRequest": (
        {"model": "m", "prompt": "Hi"},
        lambda fields: CompletionsReply(fields, _NOBODY, model="m", tokenizer=_NOBODY),
    ),
    "ResponseRequest": (
        {"model": "m", **_SAID},
        lambda fields: parse_response(fields, ResponseStore(), {}),
    ),
    "ResponseCountRequest": (_SAID, lambda fields: parse_count(fields, ResponseStore(), {})),
    "MessagesRequest": (
        {"model": "m", "max_tokens": 1, **_HI},
        lambda fields: MessagesReply(fields, _NOBODY, model="m"),
    ),
    "CountRequest": (_HI, lambda fields: parse_messages(fields, max_new_tokens=None)),
}
"""The parser of each request, and a small body that it accepts."""


def _requests() -> Iterator[tuple[str, Schema]]:
    """The schema of each request, as its parser reads it."""
    for name, (body, parse) in _PARSERS.items():
        described = _Described(body)
        parse(described)
        required = set(body)
        for field in body:
            with suppress(ApiError):  # it is missed
                parse(Fields({key: value for key, value in body.items() if key != field}))
                required.remove(field)
        yield name, _object(" ".join(sorted(required)), **described.properties)


def _reply_schemas() -> dict[str, Schema]:
    error = _object(
        "message type param code", message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT
    )
    return {
        **_completion_schemas(),
        **_response_schemas(),
        "Any": _MAP,
        "Event": _object("data", data=_TEXT, event=_TEXT),
        "Error": _object("error", error=error),
        "AnthropicError": _object(
            "type error request_id",
            type={"const": "error"},
            error=_object("message type", message=_TEXT, type=_TEXT),
            request_id=_MAYBE_TEXT,
        ),
        "Count": _object("input_tokens", input_tokens=_COUNT),
        "Deleted": _object("id object deleted", id=_TEXT, object=_TEXT, deleted=_FLAG),
        "List": _object("object data", object={"const": "list"}, data=_MAPS),
        "Model": _object(
            "id object created owned_by",
            id=_TEXT,
            object={"const": "model"},
            created=_COUNT,
            owned_by=_TEXT,
            max_model_len=_COUNT,
        ),
        "Health": _object("status version", status=_TEXT, version=_COUNT),
    }


def _completion_schemas() -> dict[str, Schema]:
    """Schemas of the answers to chat requests and to requests with a plain text."""
    message = _object(
        "role content refusal",
        role={"const": "assistant"},
        content=_MAYBE_TEXT,
        refusal=_MAYBE_TEXT,
        reasoning_content=_TEXT,
        tool_calls=_MAPS,
        function_call=_MAP,
    )
    ends = {"enum": ["stop", "length", "tool_calls", "function_call"]}
    logprobs = _or_null(_MAP)
    choice = _object(
        "index message logprobs finish_reason",
        index=_COUNT,
        message=message,
        logprobs=logprobs,
        finish_reason=ends,
    )
    text = _object(
        "index text logprobs finish_reason",
        index=_COUNT,
        text=_TEXT,
        logprobs=logprobs,
        finish_reason=ends,
    )
    usage = _object(
        "prompt_tokens completion_tokens total_tokens",
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
    )
    made = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": usage}
    return {
        "ChatCompletion": _object(
            "id object created model choices usage service_tier system_fingerprint",
            object={"const": "chat.completion"},
            choices=_list(choice),
            service_tier=_TEXT,
            system_fingerprint=_TEXT,
            **made,
        ),
        "Completion": _object(
            "id object created model choices usage",
            object={"const": "text_completion"},
            choices=_list(text),
            **made,
        ),
    }


def _response_schemas() -> dict[str, Schema]:
    """Schemas of OpenAI's response and of Anthropic's message."""
    item = _object("id type", id=_TEXT, type=_ITEM_TYPES)
    stop_reasons = {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}
    return {
        "Response": _object(
            "id object created_at status error incomplete_details instructions metadata model output "
            "parallel_tool_calls previous_response_id store temperature text tool_choice tools top_p "
            "truncation usage",
            id=_TEXT,
            object={"const": "response"},
            created_at=_NUMBER,
            status={"enum": ["completed", "incomplete"]},
            error=_or_null(_MAP),
            incomplete_details=_or_null(_MAP),
            instructions=_MAYBE_TEXT,
            metadata=_MAP,
            model=_TEXT,
            output=_list(item),
            parallel_tool_calls=_FLAG,
            previous_response_id=_MAYBE_TEXT,
            store=_FLAG,
            temperature=_NUMBER,
            text=_MAP,
            tool_choice=_ANY,
            tools=_MAPS,
            top_p=_NUMBER,
            truncation=_TEXT,
            usage=_object("input_tokens output_tokens total_tokens"),
        ),
        "Message": _object(
            "id type role content model stop_reason stop_sequence usage",
            id=_TEXT,
            type={"const": "message"},
            role={"const": "assistant"},
            content=_list(_object("type", type={"enum": ["text", "thinking", "tool_use"]})),
            model=_TEXT,
            stop_reason=stop_reasons,
            stop_sequence=_MAYBE_TEXT,
            usage=_object("input_tokens output_tokens"),
        ),
    }


def _control_schemas() -> dict[str, Schema]:
    limits = _object(max_turns=_LIMIT, max_tokens=_LIMIT, max_new_tokens=_LIMIT)
    sampling = _object(
        mode={"enum": ["override", "respect"]},
        temperature=_number(0, 2),
    )
    summary = {
        "id": _TEXT,
        "user": _MAYBE_TEXT,
        "split": _TEXT,
        "num_turns": _COUNT,
        "num_sampled_tokens": _COUNT,
        "truncated": _FLAG,
        "closed": _FLAG,
        "faults": _list(_TEXT),
    }
    turn = {"anyOf": [_COUNT, _TEXT, {"type": "null"}]}
    address = _object("id base_url api_key", id=_TEXT, base_url=_TEXT, api_key=_TEXT)
    return {
        "OpenRequest": _object(
            id=_TEXT,
            user=_TEXT,
            group_size=_integer(1, 1024),
            split={"enum": ["train", "eval", "live"]},
            seed=_COUNT,
            limits=limits,
            sampling=sampling,
        ),
        "Sessions": _object("sessions", sessions=_list(address)),
        "Summaries": _object("sessions", sessions=_list(ref("Summary"))),
        "Summary": _object("id user split closed", **summary),
        "Trace": _object("id turns rewards", turns=_list({"type": "object"}), **summary),
        "RewardRequest": _object("reward", reward=_NUMBER, turn=turn, choice=_integer(0, 127)),
        "Reward": _object("id reward", id=_TEXT, reward=_NUMBER, turn=turn),
        "Weights": _object("version", version=_COUNT),
        "Paused": _object("paused", paused=_FLAG),
    }
