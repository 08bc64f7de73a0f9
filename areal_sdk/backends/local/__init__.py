"""The embedded engine: torch, in a process of its own. Importing this loads no torch."""

from areal_sdk.backends.local.engine import LocalEngine
from areal_sdk.backends.local.protocol import LocalOptions

__all__ = ["LocalEngine", "LocalOptions"]
