"""Sources of plugins: entry points of installed distributions, and files."""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from areal_sdk.hookspecs import PROJECT

DISABLE_VARIABLE = "AREAL_SDK_DISABLE_PLUGINS"


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin that was found but not imported yet."""

    name: str
    """Entry point name, or the file's stem."""
    distribution: str
    """The distribution, or the file, to name in error messages."""
    version: str
    load: Callable[[], object]

    @property
    def key(self) -> str:
        return f"{self.distribution}:{self.name}"

    def __str__(self) -> str:
        return self.distribution

    def is_disabled(self, disabled: frozenset[str]) -> bool:
        return bool(disabled & {normalise(self.distribution), normalise(self.name)})


def installed_plugins() -> list[PluginSource]:
    """Every entry point in our group, ordered by distribution so that runs agree."""
    sources = [
        PluginSource(
            name=point.name,
            distribution=point.dist.name if point.dist else point.value,
            version=point.dist.version if point.dist else "unknown",
            load=point.load,
        )
        for point in entry_points(group=PROJECT)
    ]
    return sorted(sources, key=lambda source: (source.distribution.lower(), source.name))


def file_plugin(module: ModuleType, path: str | Path) -> PluginSource:
    """The source of a user's own module. Its path stands for the distribution, and a digest for the version."""
    file = Path(path).absolute()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else "unknown"
    return PluginSource(file.stem, str(file), f"sha256:{digest}", lambda: module)


def disabled_names() -> frozenset[str]:
    """Distributions or entry points that the variable `DISABLE_VARIABLE` switches off."""
    listed = os.environ.get(DISABLE_VARIABLE, "").split(",")
    return frozenset(normalise(name) for name in listed if name.strip())


def normalise(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
