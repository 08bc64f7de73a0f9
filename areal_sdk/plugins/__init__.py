"""Plugins: finding and loading them, the names they register, and errors that name the plugin.

A plugin is a module: of a distribution that declares an entry point in the group `areal_sdk`, or a
user's own file. It runs in this process with full trust.
"""

from areal_sdk.options import Option, list_options, validate_options
from areal_sdk.plugins.discovery import PluginSource, installed_plugins
from areal_sdk.plugins.forms import ToolFormats
from areal_sdk.plugins.loading import PluginReport, Plugins, Status, load_plugins
from areal_sdk.plugins.observers import Observers
from areal_sdk.plugins.registry import Registry

__all__ = [
    "Observers",
    "Option",
    "PluginReport",
    "PluginSource",
    "Plugins",
    "Registry",
    "Status",
    "ToolFormats",
    "installed_plugins",
    "list_options",
    "load_plugins",
    "validate_options",
]
