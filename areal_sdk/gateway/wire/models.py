"""`/v1/models`, for OpenAI's clients and for Anthropic's, which share the path."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.wire.http import json_response


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    since: int
    """Unix time in seconds at which serving began."""
    max_context: int


def list_models(request: web.Request, models: Sequence[ServedModel]) -> web.Response:
    if not _speaks_anthropic(request):
        return json_response({"object": "list", "data": [*map(_openai, models)]})
    page = {"first_id": models[0].name, "last_id": models[-1].name, "has_more": False}
    return json_response({"data": [*map(_anthropic, models)], **page})


def get_model(request: web.Request, models: Sequence[ServedModel]) -> web.Response:
    name = request.match_info["model"]
    model = next((model for model in models if model.name == name), None)
    if model is None:
        error = ApiError(
            404, f"The model {name!r} does not exist", param="model", code="model_not_found"
        )
        if _speaks_anthropic(request):
            return json_response(error.anthropic_body(), status=404)
        raise error
    return json_response(_anthropic(model) if _speaks_anthropic(request) else _openai(model))


def _speaks_anthropic(request: web.Request) -> bool:
    """Whether an Anthropic client asks. Such clients send the header of their API's version with every request."""
    return "anthropic-version" in request.headers


def _openai(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.since,
        "owned_by": "areal-sdk",
        "max_model_len": model.max_context,
    }


def _anthropic(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.since, UTC).isoformat(),
        "max_input_tokens": model.max_context,
        "max_tokens": model.max_context,
        "lifecycle": "active",
    }
