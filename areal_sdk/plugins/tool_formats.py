"""The tool-call formats that plugins registered: by name, in the order of detection, and for other processes."""

import logging
from types import ModuleType

from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.plugins.registry import Registry
from areal_sdk.process.user_code import reference_to
from areal_sdk.tool_calls import ToolFormat

logger = logging.getLogger("areal_sdk.plugins")

CORE = "areal-sdk"
"""The distribution whose formats are tried last."""


class ToolFormats(Registry[ToolFormat]):
    """Tool-call formats. A chat template is matched with the formats of plugins before those of the core."""

    def get(self, name: str) -> ToolFormat:
        """The format called `name`. PluginError for one that calls itself otherwise."""
        found = super().get(name)
        if found.name != name:
            raise PluginError(
                f"{self.kind} {name!r} of {self._claim(name).owner} calls itself {found.name!r}: give it one name"
            )
        return found

    def reference(self, name: str) -> str:
        """The reference of the format called `name`, which rollout nodes and gateway processes import."""
        claim = self._claim(name)
        if isinstance(claim.item, str):
            return claim.item
        module = claim.owner.load()
        return reference_to(claim.item, module=module if isinstance(module, ModuleType) else None)

    def in_order(self) -> list[ToolFormat]:
        """The formats that a chat template may speak, in the order in which they are tried.

        A plugin's format that cannot be used is left out, with a warning: only a run that names it needs it.
        """
        by_plugins = [name for name in self._claims if self.owners(name) != [CORE]]
        found = []
        for name in by_plugins:
            try:
                found.append(self.get(name))
            except (ConfigError, PluginError) as exc:
                logger.warning("%s; it is left out", exc)
        return found + [self.get(name) for name in self._claims if name not in by_plugins]


def not_a_tool_format(item: object) -> str | None:
    """The problem with a tool-call format, if any."""
    if isinstance(item, ToolFormat):
        return None
    return f"must be an areal_sdk.tool_calls.ToolFormat, not {type(item).__name__}"
