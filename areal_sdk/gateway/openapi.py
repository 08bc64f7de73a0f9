"""The OpenAPI document of everything the gateway serves."""

import re
from functools import cache
from typing import Any

_Schema = dict[str, Any]

_NAMED = re.compile(r"#/components/schemas/(\w+)")


@cache
def openapi_document() -> dict[str, Any]:
    """Of a gateway that serves a model."""
    paths = {**_openai_paths(), **_anthropic_paths(), **_own_paths(), **_control_paths()}
    return _document(
        "OpenAI- and Anthropic-shaped endpoints whose every sampled token is recorded, and the "
        "control plane.",
        {**paths, **_engine_paths(), **_open_paths("/health", "/ready", "/metrics")},
    )


@cache
def upstream_document() -> dict[str, Any]:
    """Of a gateway that passes calls on to another provider."""
    paths = {**_own_paths(), **_control_paths(), **_passed_paths()}
    return _document(
        "The control plane, and another provider's endpoints behind it, whose text is recorded.",
        {**paths, **_open_paths("/health", "/ready")},
    )


def _document(description: str, paths: dict[str, Any]) -> dict[str, Any]:
    described = _names_in(paths)
    schemas = _schemas()
    named = {name for kind in described for name in (kind, *_names_in(schemas[kind]))}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "areal-sdk gateway",
            "version": "1",
            "description": (
                f"{description} Every /v1 path also exists below /s/{{session}}, where the "
                "address names the session and no key is needed."
            ),
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": {name: schemas[name] for name in schemas if name in named},
        },
    }


def _openai_paths() -> dict[str, Any]:
    response_id = [_path_parameter("id")]
    stored = {"get": _operation("Retrieve a stored response", "Response", parameters=response_id)}
    stored["delete"] = _operation("Delete a stored response", "Deleted", parameters=response_id)
    return {
        "/v1/chat/completions": {
            "post": _operation("Chat", "ChatCompletion", body="ChatRequest", streams=True)
        },
        "/v1/completions": {
            "post": _operation(
                "Continue text", "Completion", body="CompletionRequest", streams=True
            )
        },
        "/v1/responses": {
            "post": _operation("Respond", "Response", body="ResponseRequest", streams=True)
        },
        "/v1/responses/input_tokens": {
            "post": _operation("Count prompt tokens", "Count", body="ResponseRequest")
        },
        "/v1/responses/{id}": stored,
        "/v1/responses/{id}/cancel": {
            "post": _operation(
                "Refused: nothing runs in the background", "Response", parameters=response_id
            )
        },
        "/v1/responses/{id}/input_items": {
            "get": _operation("What a response answered", "List", parameters=response_id)
        },
        "/v1/models": {"get": _operation("Models", "List")},
        "/v1/models/{model}": {
            "get": _operation("One model", "Model", parameters=[_path_parameter("model")])
        },
        "/v1/embeddings": {"post": _operation("Refused: a policy has none", "Error")},
    }


def _own_paths() -> dict[str, Any]:
    """What callers do with their own sessions."""
    return {
        "/v1/reward": {
            "post": _operation("Reward the caller's own session", "Reward", body="RewardRequest")
        },
        "/v1/end": {"post": _operation("End the caller's own session", "Summary")},
    }


def _anthropic_paths() -> dict[str, Any]:
    return {
        "/v1/messages": {
            "post": _operation(
                "Chat, Anthropic's way",
                "Message",
                body="MessagesRequest",
                streams=True,
                error="AnthropicError",
            )
        },
        "/v1/messages/count_tokens": {
            "post": _operation(
                "Count prompt tokens", "Count", body="CountRequest", error="AnthropicError"
            )
        },
    }


def _control_paths() -> dict[str, Any]:
    session_id = [_path_parameter("id")]
    return {
        "/control/sessions": {
            "post": _operation(
                "Open a session or a group", "Sessions", body="OpenRequest", status=201
            ),
            "get": _operation("Open sessions", "Summaries"),
        },
        "/control/sessions/{id}": {
            "get": _operation("A session's trace", "Trace", parameters=session_id),
            "delete": _operation("Close a session", "Trace", parameters=session_id),
        },
        "/control/sessions/{id}/reward": {
            "post": _operation(
                "Reward a turn or the episode",
                "Reward",
                body="RewardRequest",
                parameters=session_id,
            )
        },
    }


def _engine_paths() -> dict[str, Any]:
    return {
        "/control/weights": {"get": _operation("The version that is served", "Weights")},
        "/control/pause": {"post": _operation("Hold generation", "Paused")},
        "/control/resume": {"post": _operation("Continue generation", "Paused")},
    }


def _passed_paths() -> dict[str, Any]:
    passed = _operation(
        "Passed on to the provider as it is", "Any", parameters=[_path_parameter("path")]
    )
    return {"/v1/{path}": {"get": passed, "post": passed, "delete": passed}}


def _open_paths(*served: str) -> dict[str, Any]:
    """What needs no key: those that are `served`, and the document."""
    text = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
    paths = {
        "/health": {"get": _operation("Whether it serves", "Health")},
        "/ready": {"get": _operation("Whether it serves", "Health")},
        "/metrics": {"get": {"summary": "Prometheus metrics", "responses": {"200": text}}},
        "/openapi.json": {"get": _operation("This document", "Any")},
    }
    for path in paths.values():
        path["get"]["security"] = []
    return {path: paths[path] for path in (*served, "/openapi.json")}


def _names_in(schema: _Schema) -> list[str]:
    return _NAMED.findall(str(schema))


def _path_parameter(name: str) -> _Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(
    summary: str,
    answer: str,
    *,
    body: str | None = None,
    parameters: list[_Schema] | None = None,
    status: int = 200,
    streams: bool = False,
    error: str = "Error",
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refused = {"content": {"application/json": {"schema": _ref(error)}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(status): {"description": summary, "content": content},
            "4XX": {"description": "Refused; the error names the field", **refused},
            "5XX": {"description": "The engine failed, or cannot do this", **refused},
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if body:
        schema = {"application/json": {"schema": _ref(body)}}
        operation["requestBody"] = {"required": True, "content": schema}
    return operation


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", **properties: _Schema) -> _Schema:
    return {"type": "object", "required": required.split(), "properties": properties}


_TEXT: _Schema = {"type": "string"}
_MAYBE_TEXT: _Schema = {"type": ["string", "null"]}
_NUMBER: _Schema = {"type": "number"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_FLAG: _Schema = {"type": "boolean"}
_ANY: _Schema = {}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _schemas() -> dict[str, _Schema]:
    return {**_request_schemas(), **_reply_schemas(), **_control_schemas()}


def _request_schemas() -> dict[str, _Schema]:
    limit = {"type": "integer", "minimum": 1}
    message = _object("role", role=_TEXT, content=_ANY)
    shared = {
        "model": _TEXT,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "stream": _FLAG,
        "tools": _list({"type": "object"}),
        "tool_choice": _ANY,
    }
    stop = {"anyOf": [_TEXT, _list(_TEXT)]}
    messages = {**_list(message), "minItems": 1}
    anthropic = {**shared, "messages": messages, "system": _ANY, "stop_sequences": _list(_TEXT)}
    return {
        "ChatRequest": _object(
            "messages",
            messages=messages,
            max_tokens=limit,
            max_completion_tokens=limit,
            n={"type": "integer", "minimum": 1, "maximum": 128},
            stop=stop,
            seed={"type": "integer"},
            logprobs=_FLAG,
            top_logprobs={"type": "integer", "minimum": 0, "maximum": 20},
            **shared,
        ),
        "CompletionRequest": _object(
            "prompt", prompt=_ANY, max_tokens=limit, stop=stop, echo=_FLAG, **shared
        ),
        "ResponseRequest": _object(
            "input",
            input={"anyOf": [_TEXT, _list({"type": "object"})]},
            instructions=_TEXT,
            max_output_tokens=limit,
            previous_response_id=_TEXT,
            store=_FLAG,
            **shared,
        ),
        "MessagesRequest": _object("messages max_tokens", max_tokens=limit, **anthropic),
        "CountRequest": _object("messages", **anthropic),
    }


def _reply_schemas() -> dict[str, _Schema]:
    error = _object("message type", message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT)
    made = {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT}
    choices = _list({"type": "object"})
    return {
        "Any": {"type": "object"},
        "Error": _object("error", error=error),
        "AnthropicError": _object("type error", type=_TEXT, error=_object("message type")),
        "ChatCompletion": _object("id object created model choices usage", choices=choices, **made),
        "Completion": _object("id object created model choices usage", choices=choices, **made),
        "Response": _object("id object status output", id=_TEXT, output=choices, status=_TEXT),
        "Message": _object("id type role content stop_reason usage", content=choices),
        "Count": _object("input_tokens", input_tokens=_COUNT),
        "Deleted": _object("id deleted", id=_TEXT, deleted=_FLAG),
        "List": _object("object data", object=_TEXT, data=_list({"type": "object"})),
        "Model": _object("id object", id=_TEXT, object=_TEXT, max_model_len=_COUNT),
        "Health": _object("status version", status=_TEXT, version=_COUNT),
    }


def _control_schemas() -> dict[str, _Schema]:
    limit = {"type": "integer", "minimum": 1}
    limits = _object(max_turns=limit, max_tokens=limit, max_new_tokens=limit)
    sampling = _object(
        mode={"enum": ["override", "respect"]},
        temperature={"type": "number", "minimum": 0, "maximum": 2},
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
            group_size={"type": "integer", "minimum": 1, "maximum": 1024},
            split={"enum": ["train", "eval", "live"]},
            seed=_COUNT,
            limits=limits,
            sampling=sampling,
        ),
        "Sessions": _object("sessions", sessions=_list(address)),
        "Summaries": _object("sessions", sessions=_list(_ref("Summary"))),
        "Summary": _object("id user split closed", **summary),
        "Trace": _object("id turns rewards", turns=_list({"type": "object"}), **summary),
        "RewardRequest": _object("reward", reward=_NUMBER, turn=turn),
        "Reward": _object("id reward", id=_TEXT, reward=_NUMBER, turn=turn),
        "Weights": _object("version", version=_COUNT),
        "Paused": _object("paused", paused=_FLAG),
    }
