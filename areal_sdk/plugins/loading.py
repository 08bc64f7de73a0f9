"""The plugins of this process: loads and reports them, and resolves names."""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

import pluggy

from areal_sdk import hookspecs
from areal_sdk.agent import AgentForm, AgentLike
from areal_sdk.engine import InferenceEngine
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError, PluginError
from areal_sdk.options import validate_options
from areal_sdk.plugins.checks import (
    HOOKS,
    check_hooks,
    not_a,
    not_a_function,
    not_a_subclass_of,
    not_an_environment,
    not_an_observer,
    not_callable,
)
from areal_sdk.plugins.discovery import (
    PluginSource,
    disabled_names,
    file_plugin,
    installed_plugins,
)
from areal_sdk.plugins.forms import AgentForms, ToolFormats, not_a_tool_format
from areal_sdk.plugins.observers import Observers
from areal_sdk.plugins.registry import Registry
from areal_sdk.process.user_code import load_user_module
from areal_sdk.reward import RewardFn
from areal_sdk.routes import Backend, BackendSettings, Route
from areal_sdk.trainer import Trainer, TrainerSetup
from areal_sdk.types import Task

if TYPE_CHECKING:
    import click

    from areal_sdk.launcher import Launcher, LauncherSetup, OpenLauncher  # loads pydantic

logger = logging.getLogger("areal_sdk.plugins")

DatasetFn = Callable[..., Iterable[Task]]
PresetFn = Callable[..., object]


class Status(StrEnum):
    LOADED = "loaded"
    DISABLED = "disabled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The state of one plugin, as `areal-sdk plugins` shows it."""

    name: str
    distribution: str
    version: str
    status: Status
    error: str = ""
    """The reason why the plugin failed."""
    brings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names that the plugin registered, by kind."""
    observes: Sequence[str] = ()
    """Hooks that are called during a run."""
    conflicts: Sequence[str] = ()
    """Names that another plugin claims too; neither can be used."""


class Plugins:
    """All items that the loaded plugins registered. Made by `load_plugins`."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._sources: dict[str, PluginSource] = {}
        self._failed: dict[str, str] = {}
        self._disabled: set[str] = set()
        absent = self._absent
        self.rewards = Registry[RewardFn]("reward", check=not_a_function, absent=absent)
        self.environments = Registry[type[Environment]](
            "environment", check=not_an_environment, absent=absent
        )
        self.agents = Registry["AgentLike | type[Any]"]("agent", absent=absent)
        self.agent_forms = AgentForms("agent_form", check=not_a(AgentForm), absent=absent)
        self.engines = Registry[type[InferenceEngine]](
            "engine", check=not_a_subclass_of(InferenceEngine), absent=absent
        )
        self.trainers = Registry[Callable[..., Trainer]](
            "trainer", check=not_callable, absent=absent
        )
        self.launchers: Registry[OpenLauncher] = Registry(
            "launcher", check=not_callable, absent=absent
        )
        self.datasets = Registry[DatasetFn]("dataset", check=not_callable, absent=absent)
        self.algorithms = Registry[PresetFn]("algorithm", check=not_callable, absent=absent)
        self.tool_formats = ToolFormats("tool_format", check=not_a_tool_format, absent=absent)
        self.routes = Registry[Route]("route", check=not_a(Route), absent=absent)
        self.backends = Registry[Callable[[BackendSettings], Backend]](
            "backend", check=not_callable, absent=absent
        )
        self.observers = Registry[type]("observer", check=not_an_observer, absent=absent)
        self.commands: Registry[click.Command] = Registry("command", absent=absent)
        self.notify = Observers(self._pluggy)

    def add(self, source: PluginSource) -> None:
        """Import and register a plugin. If that fails, PluginError names the plugin, and no item of it stays."""
        self._sources[source.key] = source
        try:
            plugin = source.load()
            check_hooks(plugin)
            self._pluggy.register(plugin, name=source.key)
            self._collect(source, plugin)
        except (Exception, SystemExit) as exc:
            self._remove(source)
            reason = str(exc) if isinstance(exc, PluginError) else f"{type(exc).__name__}: {exc}"
            self._failed[source.key] = reason
            raise PluginError(f"plugin {source.distribution}: {reason}") from exc

    def disable(self, source: PluginSource) -> None:
        """Record a plugin that is installed but disabled."""
        self._sources[source.key] = source
        self._disabled.add(source.key)

    def register_module(self, module: ModuleType, path: str | Path) -> None:
        """Register a user's own module as a plugin."""
        source = file_plugin(module, path)
        if self._pluggy.is_registered(module):
            return
        self.add(source)
        for registry in self._registries():
            for name in registry.owned_by(source):
                if problem := registry.conflict(name):
                    self._remove(source)
                    raise PluginError(problem)

    def register_file(self, path: Path) -> None:
        """Register the plugin in a user's own file, as in `--plugin my_file.py`."""
        self.register_module(load_user_module(path), path)

    def add_rewards(self, rewards: Mapping[str, RewardFn]) -> None:
        """Register functions that were given from Python."""
        source = PluginSource("rewards", "rewards=", "given", lambda: None)
        for name, reward in rewards.items():
            if name in self.rewards:
                owners = " and ".join(self.rewards.owners(name))
                raise ConfigError(
                    f"rewards: {name!r} is a reward of {owners}: rename your function"
                )
            self.rewards.register(name, reward, owner=source)

    @overload
    def configure(
        self, kind: Literal["reward"], name: str, options: Mapping[str, object] = ...
    ) -> RewardFn: ...
    @overload
    def configure(
        self, kind: Literal["env"], name: str, options: Mapping[str, object] = ...
    ) -> Callable[[], Environment]: ...
    @overload
    def configure(
        self, kind: Literal["agent"], name: str, options: Mapping[str, object] = ...
    ) -> AgentLike: ...
    @overload
    def configure(
        self, kind: Literal["engine"], name: str, options: Mapping[str, object] = ...
    ) -> InferenceEngine: ...
    @overload
    def configure(
        self, kind: Literal["trainer"], name: str, options: Mapping[str, object] = ...
    ) -> Callable[[TrainerSetup], Trainer]: ...
    @overload
    def configure(
        self, kind: Literal["cluster"], name: str, options: Mapping[str, object] = ...
    ) -> "Callable[[LauncherSetup], Awaitable[Launcher]]": ...
    @overload
    def configure(
        self, kind: Literal["dataset"], name: str, options: Mapping[str, object] = ...
    ) -> DatasetFn: ...

    def configure(
        self, kind: str, name: str, options: Mapping[str, object] | None = None
    ) -> object:
        """The plugin's item with its options checked and bound.

        A reward, an agent or a dataset is ready to call. An engine is an instance. The other kinds are factories: of
        environments, because each episode needs a new one, of a trainer from a `TrainerSetup`, and of a launcher
        (`cluster`) from a `LauncherSetup`.
        """
        table = {"agent": "agent", "dataset": f"tasks.{name}"}.get(kind, f"{kind}.{name}")
        registry: Registry[Any] = self._by_table_name()[kind]
        item = registry.get(name)
        if kind in ("env", "trainer", "cluster"):
            return _bind(kind, item, options or {}, table=table)
        if inspect.isclass(item):
            return item(**validate_options(item, options or {}, table=table))
        return _bind(kind, item, options or {}, table=table)

    def observe(self, name: str, options: Mapping[str, object]) -> None:
        """Make the observer called `name`; from now on its hooks are called."""
        observer = self.observers.get(name)
        given = validate_options(observer, options, table=f"observer.{name}")
        self._pluggy.register(observer(**given), name=f"observer {name}")

    def report(self) -> list[PluginReport]:
        return [self._report(source) for source in self._sources.values()]

    def failures(self) -> list[str]:
        """One line for each plugin that failed and each name that two plugins claim."""
        failed = [f"plugin {self._sources[k].distribution}: {e}" for k, e in self._failed.items()]
        return failed + [
            problem
            for registry in self._registries()
            for name in registry.names()
            if (problem := registry.conflict(name))
        ]

    def installed_versions(self) -> dict[str, str]:
        """Version of every installed plugin, loaded or not. A run records them."""
        return {source.distribution: source.version for source in self._sources.values()}

    def _collect(self, source: PluginSource, plugin: object) -> None:
        """Call the plugin's `register_*` hooks with a `register` function that adds the plugin as the owner."""
        for hook in HOOKS:
            if not hook.startswith("register_"):
                continue
            registry: Registry[Any] = self._by_hook()[hook]
            for impl in getattr(self._pluggy.hook, hook).get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                if hook == "register_commands":
                    self._collect_commands(source, impl.function)
                else:
                    register = functools.partial(registry.register, owner=source)
                    impl.function(*(register for _ in impl.argnames))

    def _collect_commands(self, source: PluginSource, function: Callable[..., None]) -> None:
        import click

        group = click.Group(source.name)
        function(group)
        for name, command in group.commands.items():
            self.commands.register(name, command, owner=source)

    def _remove(self, source: PluginSource) -> None:
        if self._pluggy.has_plugin(source.key):
            self._pluggy.unregister(name=source.key)
        for registry in self._registries():
            registry.forget(source)

    def _report(self, source: PluginSource) -> PluginReport:
        if source.key in self._disabled:
            return PluginReport(source.name, source.distribution, source.version, Status.DISABLED)
        if error := self._failed.get(source.key):
            return PluginReport(
                source.name, source.distribution, source.version, Status.FAILED, error
            )
        plugin = self._pluggy.get_plugin(source.key)
        return PluginReport(
            source.name,
            source.distribution,
            source.version,
            Status.LOADED,
            brings={r.kind: names for r in self._registries() if (names := r.owned_by(source))},
            observes=[
                caller.name
                for caller in self._pluggy.get_hookcallers(plugin) or ()
                if caller.name.startswith("on_")
            ],
            conflicts=[
                problem
                for registry in self._registries()
                for name in registry.owned_by(source)
                if (problem := registry.conflict(name))
            ],
        )

    def _absent(self) -> str:
        notes = [
            f"{self._sources[key].distribution} might have brought it but failed: {error}"
            for key, error in self._failed.items()
        ]
        if self._disabled:
            names = ", ".join(sorted(self._sources[key].distribution for key in self._disabled))
            notes.append(f"disabled: {names}")
        return "; ".join(notes)

    def _registries(self) -> list[Registry[Any]]:
        return [
            self.rewards,
            self.environments,
            self.agents,
            self.agent_forms,
            self.engines,
            self.trainers,
            self.launchers,
            self.datasets,
            self.algorithms,
            self.tool_formats,
            self.routes,
            self.backends,
            self.observers,
            self.commands,
        ]

    def _by_hook(self) -> dict[str, Registry[Any]]:
        return {f"register_{registry.kind}s": registry for registry in self._registries()}

    def _by_table_name(self) -> dict[str, Registry[Any]]:
        return {registry.kind: registry for registry in self._registries()} | {
            "env": self.environments,
            "cluster": self.launchers,
        }


_ARGUMENTS = {"reward": 1, "agent": 2, "dataset": 1, "trainer": 1, "cluster": 1}
"""Arguments that an item of this kind is called with; the parameters after them are options."""


def _bind(
    kind: str, item: Callable[..., Any], options: Mapping[str, object], *, table: str
) -> Callable[..., Any]:
    """`item` with its options checked and set; `item` itself if it has no options."""
    if not callable(item):
        if options:
            raise ConfigError(f"[{table}] takes no options")
        return item
    values = validate_options(item, options, table=table, skip=_ARGUMENTS.get(kind, 0))
    return functools.partial(item, **values) if values else item


def load_plugins(
    *,
    files: Iterable[Path] = (),
    sources: Iterable[PluginSource] | None = None,
) -> Plugins:
    """Load every installed plugin, then the user's own `files`.

    An installed plugin that fails is left out, with a warning (see `failures`). A file that fails
    raises, since the user asked for it.
    """
    plugins = Plugins()
    disabled = disabled_names()
    for source in installed_plugins() if sources is None else sources:
        if source.is_disabled(disabled):
            plugins.disable(source)
            continue
        try:
            plugins.add(source)
        except PluginError:
            continue  # `failures` reports it
    for problem in plugins.failures():
        logger.warning("%s", problem)
    for path in files:
        plugins.register_file(path)
    return plugins
