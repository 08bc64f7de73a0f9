"""The OpenAPI document of everything the gateway serves."""

import re
from functools import cache
from typing import Any

from areal_sdk.gateway.wire.schemas import Schema, ref, schemas_by_name

_NAMED = re.compile(r"#/components/schemas/(\w+)")
_PARAMETER = re.compile(r"{(\w+)}")

Routes = list[tuple[str, str, dict[str, Any]]]
"""Paths, methods and operations."""


@cache
def openapi_document() -> dict[str, Any]:
    """The document of a gateway that serves a model."""
    routes = _openai_routes() + _anthropic_routes() + _control_routes() + _engine_routes()
    return _document(
        "OpenAI- and Anthropic-shaped endpoints whose every sampled token is recorded, and the "
        "control plane.",
        routes + _open_routes() + _metrics_route(),
    )


@cache
def backend_document() -> dict[str, Any]:
    """The document of a gateway with a backend in place of a model."""
    return _document(
        "The control plane, and another provider's endpoints behind it, whose text is recorded.",
        _control_routes() + _passed_routes() + _open_routes(),
    )


def _document(description: str, routes: Routes) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, method, operation in routes:
        paths.setdefault(path, {})[method] = operation
    described = _names_in(paths)
    schemas = schemas_by_name()
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


def _openai_routes() -> Routes:
    return [
        _route("post /v1/chat/completions", "Chat", "ChatRequest", "ChatCompletion", streams=True),
        _route("post /v1/completions", "Continue text", "CompletionRequest", "Completion", streams=True),
        _route("post /v1/responses", "Respond", "ResponseRequest", "Response", streams=True),
        _route("post /v1/responses/input_tokens", "Count prompt tokens", "ResponseCountRequest", "Count"),
        _route("post /v1/responses/compact", "Refused: nothing is compacted", "", "Error"),
        _route("get /v1/responses/{id}", "Retrieve a stored response", "", "Response"),
        _route("delete /v1/responses/{id}", "Delete a stored response", "", "Deleted"),
        _route("post /v1/responses/{id}/cancel", "Refused: nothing runs in the background", "", "Response"),
        _route("get /v1/responses/{id}/input_items", "What a response answered", "", "List"),
        _route("get /v1/models", "Models", "", "List"),
        _route("get /v1/models/{model}", "One model", "", "Model"),
        _route("post /v1/embeddings", "Refused: a policy has none", "", "Error"),
    ]  # fmt: skip


def _anthropic_routes() -> Routes:
    error = "AnthropicError"
    return [
        _route("post /v1/messages", "Chat, Anthropic's way", "MessagesRequest", "Message", streams=True, error=error),
        _route("post /v1/messages/count_tokens", "Count prompt tokens", "CountRequest", "Count", error=error),
    ]  # fmt: skip


def _control_routes() -> Routes:
    """The requests of callers about their own sessions, and the control plane."""
    return [
        _route("post /v1/reward", "Reward the caller's own session", "RewardRequest", "Reward"),
        _route("post /v1/end", "End the caller's own session", "", "Summary"),
        _route("post /control/sessions", "Open a session or a group", "OpenRequest", "Sessions", status=201),
        _route("get /control/sessions", "Open sessions", "", "Summaries"),
        _route("get /control/sessions/{id}", "A session's trace", "", "Trace"),
        _route("delete /control/sessions/{id}", "Close a session", "", "Trace"),
        _route("post /control/sessions/{id}/reward", "Reward a turn or the episode", "RewardRequest", "Reward"),
    ]  # fmt: skip


def _engine_routes() -> Routes:
    return [
        _route("get /control/weights", "The version that is served", "", "Weights"),
        _route("post /control/pause", "Hold generation", "", "Paused"),
        _route("post /control/resume", "Continue generation", "", "Paused"),
    ]


def _passed_routes() -> Routes:
    summary = "Passed on to the provider as it is"
    return [_route(f"{method} /v1/{{path}}", summary, "", "Any") for method in ("get", "post", "delete")]  # fmt: skip


def _open_routes() -> Routes:
    """The routes that need no key."""
    routes = [
        _route("get /health", "Whether it serves", "", "Health"),
        _route("get /ready", "Whether it serves", "", "Health"),
        _route("get /openapi.json", "This document", "", "Any"),
    ]
    return [(path, method, {**operation, "security": []}) for path, method, operation in routes]


def _metrics_route() -> Routes:
    text = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
    summary = "Prometheus metrics"
    return [("/metrics", "get", {"summary": summary, "responses": {"200": text}, "security": []})]


def _names_in(schema: Schema) -> list[str]:
    return _NAMED.findall(str(schema))


def _route(
    where: str,
    summary: str,
    body: str,
    answer: str,
    *,
    status: int = 200,
    streams: bool = False,
    error: str = "Error",
) -> tuple[str, str, dict[str, Any]]:
    """The route `METHOD PATH`, with the names of the schemas of its body, if it reads one, and of its answer."""
    method, path = where.split()
    content: dict[str, Any] = {"application/json": {"schema": ref(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": ref("Event")}
    refused = {"content": {"application/json": {"schema": ref(error)}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            str(status): {"description": summary, "content": content},
            "4XX": {"description": "Refused; the error names the field", **refused},
            "5XX": {"description": "The engine failed, or cannot do this", **refused},
        },
    }
    if parameters := _PARAMETER.findall(path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in parameters
        ]
    if body:
        schema = {"application/json": {"schema": ref(body)}}
        operation["requestBody"] = {"required": True, "content": schema}
    return path, method, operation
