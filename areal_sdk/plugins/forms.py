"""Registries of items that are found by how an object looks: formats of tool calls, and forms of agents."""

import inspect

from areal_sdk.agent import Agent, AgentForm, RolloutWorkflow
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.errors.packages import PACKAGES
from areal_sdk.plugins.discovery import DISABLE_VARIABLE
from areal_sdk.plugins.registry import Registry
from areal_sdk.tool_calls import ToolFormat

CORE = "areal-sdk"
"""The distribution whose formats are tried last."""


class ToolFormats(Registry[ToolFormat]):
    """Tool-call formats. A chat template is matched with the formats of plugins before those of the core."""

    def get(self, name: str) -> ToolFormat:
        """The format called `name`. PluginError for a format whose own name is another."""
        found = super().get(name)
        if found.name != name:
            raise PluginError(
                f"{self.kind} {name!r} of {self._claim(name).owner} calls itself {found.name!r}: give it one name"
            )
        return found

    def in_order(self) -> list[ToolFormat]:
        """The formats that a chat template may speak, in the order in which they are tried.

        A format that cannot be used is left out, with a warning: only a run that names it needs it.
        """
        usable = self.usable()
        return sorted(usable.values(), key=lambda found: self.owners(found.name) == [CORE])


def not_a_tool_format(item: object) -> str | None:
    """The problem with a tool-call format, if any."""
    if isinstance(item, ToolFormat):
        return None
    return f"must be an areal_sdk.tool_calls.ToolFormat, not {type(item).__name__}"


class AgentForms(Registry[AgentForm]):
    """Forms of agents. A form that a package of this project brings is named after the method that its agents have."""

    def find(self, item: object) -> str:
        """The name of the form of an agent or of a class of agents; empty if no plugin's form fits.

        ConfigError if the package that brings the form is not installed, PluginError if several forms fit.
        """
        cls = item if inspect.isclass(item) else type(item)
        if is_of_the_core(item):
            return ""
        found = [name for name, form in self.usable().items() if form.fits(cls)]
        if len(found) > 1:
            owners = [f"{name!r} of {self.owners(name)[0]}" for name in found]
            raise PluginError(
                f"{cls.__name__} has the form of several kinds of agents, {' and '.join(owners)}: uninstall one, "
                f"or set {DISABLE_VARIABLE}={self.owners(found[-1])[0]}"
            )
        if found:
            return found[0]
        for package in PACKAGES:
            for name in package.brings.get(self.kind, ()):
                if hasattr(cls, name) and not package.is_installed:
                    raise ConfigError(
                        f"{cls.__name__} is an agent by its {name!r}, which {package.name} plays: {package.cure}"
                    )
        return ""


def is_of_the_core(item: object) -> bool:
    """Whether the core plays an agent, or a class of agents, without a plugin: a function, or a subclass of the SDK's."""
    cls = item if inspect.isclass(item) else type(item)
    return inspect.isroutine(item) or issubclass(cls, (Agent, RolloutWorkflow, Environment))
