"""The schemas of bodies in the OpenAPI document: those of OpenAI and Anthropic, as far as supported."""

from typing import Any

from areal_sdk.engine import SAMPLING_BOUNDS
from areal_sdk.gateway.wire.fields import (
    LARGEST_BIAS,
    LONGEST_STOP,
    MOST_STOPS,
)
from areal_sdk.gateway.wire.responses.request import INCLUDABLE

Schema = dict[str, Any]


def schemas_by_name() -> dict[str, Schema]:
    return {
        **_completion_requests(),
        **_response_requests(),
        **_message_requests(),
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


def _accepted(names: str) -> dict[str, Schema]:
    """Fields that change nothing here, whatever they hold."""
    return dict.fromkeys(names.split(), _ANY)


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

_SAMPLING: dict[str, Schema] = {
    **{name: _number(least, most) for name, (least, most) in SAMPLING_BOUNDS.items()},
    "top_k": {"type": "integer", "minimum": -1},
    "logit_bias": {"type": "object", "additionalProperties": _number(-LARGEST_BIAS, LARGEST_BIAS)},
}

_TOOLS: dict[str, Schema] = {
    "tools": _MAPS,
    "tool_choice": _ANY,
    "parallel_tool_calls": _FLAG,
}


def _completion_requests() -> dict[str, Schema]:
    """Requests with messages or with text."""
    chosen = {"n": _integer(1, 128), "stop": _STOP, "seed": {"type": "integer"}}
    streams = {"stream": _FLAG, "stream_options": _MAP}
    return {
        "ChatRequest": _object(
            "model messages",
            model=_TEXT,
            messages=_MESSAGES,
            max_tokens=_LIMIT,
            max_completion_tokens=_LIMIT,
            response_format=_MAP,
            logprobs=_FLAG,
            top_logprobs=_integer(0, 20),
            functions=_MAPS,
            function_call=_ANY,
            chat_template_kwargs=_MAP,
            return_token_ids=_FLAG,
            **chosen,
            **streams,
            **_TOOLS,
            **_SAMPLING,
            **_accepted("user store metadata service_tier reasoning_effort verbosity"),
            **_accepted("prompt_cache_key prompt_cache_options prompt_cache_retention"),
            **_accepted("safety_identifier"),
        ),
        "CompletionRequest": _object(
            "model prompt",
            model=_TEXT,
            prompt=_ANY,
            max_tokens=_LIMIT,
            echo=_FLAG,
            logprobs=_integer(0, 20),
            best_of=_integer(1, 128),
            return_token_ids=_FLAG,
            **chosen,
            **streams,
            **_SAMPLING,
            **_accepted("user"),
        ),
    }


def _response_requests() -> dict[str, Schema]:
    spoken: dict[str, Schema] = {
        "input": {"anyOf": [_TEXT, _MAPS]},
        "instructions": _TEXT,
        "previous_response_id": _TEXT,
        "max_output_tokens": _LIMIT,
        "metadata": _MAP,
        "include": _list({"enum": [*INCLUDABLE]}),
        "text": _MAP,
        "top_logprobs": _integer(0, 20),
        "truncation": {"enum": ["auto", "disabled"]},
        "store": _FLAG,
        "background": _FLAG,
        "stream": _FLAG,
        "reasoning": _MAP,
        **_TOOLS,
        **_SAMPLING,
        **_accepted("user service_tier safety_identifier prompt_cache_key prompt_cache_options"),
        **_accepted("prompt_cache_retention stream_options max_tool_calls client_metadata"),
    }
    return {
        "ResponseRequest": _object("model", model=_TEXT, **spoken),
        "ResponseCountRequest": _object(model=_TEXT, **spoken),
    }


def _message_requests() -> dict[str, Schema]:
    """Anthropic's."""
    counted: dict[str, Schema] = {
        "model": _TEXT,
        "messages": _MESSAGES,
        "system": _ANY,
        "tools": _MAPS,
        "tool_choice": _MAP,
        "thinking": _MAP,
        "output_config": _MAP,
        **_accepted("cache_control speed user_profile_id workspace_id"),
    }
    return {
        "MessagesRequest": _object(
            "model messages max_tokens",
            max_tokens=_LIMIT,
            stop_sequences=_STOPS,
            stream=_FLAG,
            temperature=_number(0, 1),
            top_p=_number(0, 1),
            top_k=_COUNT,
            **counted,
            **_accepted("metadata service_tier inference_geo"),
        ),
        "CountRequest": _object("messages", **counted),
    }


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
    """Answers to requests with messages or with text."""
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
    """OpenAI's response and Anthropic's message."""
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
