"""The contract of a kind of inference server over HTTP: a client of its routes, its settings, and how servers start.

A `RemoteEngine` of such a client already has a pool, supervision, routing, swaps of weights and their verification. All
names that a package with a kind of server needs are here, in `areal_sdk.engine` and in `areal_sdk.launcher`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_sdk.backends.remote.client import (
        Attempt,
        Capabilities,
        Deadlines,
        Delta,
        RequestRefusedError,
        Scores,
        ServerClient,
        ServerFailedError,
        ServerInfo,
        TransportName,
        WeightLayout,
        wait_until_ready,
    )
    from areal_sdk.backends.remote.engine import RemoteEngine
    from areal_sdk.backends.remote.http import JSON, HttpClient
    from areal_sdk.backends.remote.options import RemoteSection, ServerLimits
    from areal_sdk.backends.remote.starting.placement import PlacedServers, Recipe
    from areal_sdk.backends.remote.starting.processes import (
        ServerCommand,
        ServerLauncher,
        ServerProcess,
        ServerStarter,
        start_process,
    )
    from areal_sdk.backends.remote.starting.server_process import LocalServer
    from areal_sdk.backends.remote.supervisor import SupervisionOptions
    from areal_sdk.backends.remote.weights.sender import SENDER
    from areal_sdk.config import EngineSection
    from areal_sdk.launch import LocalLauncher
    from areal_sdk.models import resolve_model
    from areal_sdk.models.families import stored_dtype

__all__ = [
    "JSON",
    "SENDER",
    "Attempt",
    "Capabilities",
    "Deadlines",
    "Delta",
    "EngineSection",
    "HttpClient",
    "LocalLauncher",
    "LocalServer",
    "PlacedServers",
    "Recipe",
    "RemoteEngine",
    "RemoteSection",
    "RequestRefusedError",
    "Scores",
    "ServerClient",
    "ServerCommand",
    "ServerFailedError",
    "ServerInfo",
    "ServerLauncher",
    "ServerLimits",
    "ServerProcess",
    "ServerStarter",
    "SupervisionOptions",
    "TransportName",
    "WeightLayout",
    "resolve_model",
    "start_process",
    "stored_dtype",
    "wait_until_ready",
]

_MODULES = (
    *(
        "client",
        "http",
        "starting.processes",
        "starting.server_process",
        "weights.sender",
        "supervisor",
    ),
    *("options", "starting.placement", "engine"),
)
"""Modules of this folder in which `__getattr__` looks for a name, from light to heavy."""
_ELSEWHERE = (
    "areal_sdk.config",
    "areal_sdk.launch",
    "areal_sdk.models",
    "areal_sdk.models.families",
)


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the process beside a server and the sender need few modules of this folder."""
    if name in __all__:
        for module in (*(f"{__name__}.{own}" for own in _MODULES), *_ELSEWHERE):
            found = vars(importlib.import_module(module))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
