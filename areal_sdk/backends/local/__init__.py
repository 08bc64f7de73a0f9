"""The embedded engine: torch, in a process of its own. Importing this loads no torch."""

from areal_sdk.backends.local.engine import LocalEngine

__all__ = ["LocalEngine"]
