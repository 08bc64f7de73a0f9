"""Servers and processes that the episodes of a worker share, for packages of agents and environments."""

from areal_sdk_shared.library import Library, check_share
from areal_sdk_shared.servers import SharedServer, SharedServers

__all__ = ["Library", "SharedServer", "SharedServers", "check_share"]
