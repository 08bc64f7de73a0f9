"""The OpenAPI document of everything the gateway serves."""

import re
from functools import cache
from typing import Any

from areal_sdk.gateway.wire.schemas import Schema, ref, schemas_by_name

_NAMED = re.compile(r"#/components/schemas/(\w+)")


@cache
def openapi_document() -> dict[str, Any]:
    """The document of a gateway that serves a model."""
    paths = {**_openai_paths(), **_anthropic_paths(), **_own_paths(), **_control_paths()}
    return _document(
        "OpenAI- and Anthropic-shaped endpoints whose every sampled token is recorded, and the "
        "control plane.",
        {**paths, **_engine_paths(), **_open_paths("/health", "/ready", "/metrics")},
    )


@cache
def backend_document() -> dict[str, Any]:
    """The document of a gateway with a backend in place of a model."""
    paths = {**_own_paths(), **_control_paths(), **_passed_paths()}
    return _document(
        "The control plane, and another provider's endpoints behind it, whose text is recorded.",
        {**paths, **_open_paths("/health", "/ready")},
    )


def _document(description: str, paths: dict[str, Any]) -> dict[str, Any]:
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
            "post": _operation("Count prompt tokens", "Count", body="ResponseCountRequest")
        },
        "/v1/responses/compact": {"post": _operation("Refused: nothing is compacted", "Error")},
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
    """The requests of callers about their own sessions."""
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
    """The paths that need no key: those that are `served`, and the document."""
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


def _names_in(schema: Schema) -> list[str]:
    return _NAMED.findall(str(schema))


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _operation(
    summary: str,
    answer: str,
    *,
    body: str | None = None,
    parameters: list[Schema] | None = None,
    status: int = 200,
    streams: bool = False,
    error: str = "Error",
) -> dict[str, Any]:
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
    if parameters:
        operation["parameters"] = parameters
    if body:
        schema = {"application/json": {"schema": ref(body)}}
        operation["requestBody"] = {"required": True, "content": schema}
    return operation
