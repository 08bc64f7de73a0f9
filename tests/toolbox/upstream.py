"""A gateway that passes calls on to a provider, as `serve --upstream` makes it."""

from typing import Any

from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.routes import BackendSettings
from areal_sdk_upstream.backend import UpstreamBackend


def upstream_gateway(url: str, *, api_key: str = "", **options: Any) -> BackendGateway:
    return BackendGateway(UpstreamBackend(BackendSettings(url, api_key)), **options)
