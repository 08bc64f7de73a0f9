"""Checks of plugins: hooks that will be called, items of the right kind."""

import difflib
import inspect
from collections.abc import Callable

from areal_sdk import hookspecs
from areal_sdk.environment import Environment
from areal_sdk.errors import PluginError

_SPECS = {
    name: item
    for name, item in vars(hookspecs).items()
    if inspect.isfunction(item) and name.startswith(("register_", "on_"))
}
HOOKS = tuple(_SPECS)
"""The name of every hook, in the order of `hookspecs`."""


OBSERVING = tuple(name for name in HOOKS if name.startswith("on_"))
"""Hooks that are called during a run."""


def check_hooks(plugin: object) -> None:
    """Refuse hooks that pluggy would silently never run: misspelt ones, unmarked ones, coroutines."""
    module = getattr(plugin, "__name__", "")
    for name, item in vars(plugin).items():
        if inspect.isroutine(item):
            _check_hook(name, item, is_own=getattr(item, "__module__", "") == module)


def _check_hook(name: str, item: Callable[..., object], *, is_own: bool, skip: int = 0) -> None:
    """Raise PluginError if `item` is a hook that would fail or never be called. The first `skip` parameters are not the hook's,
    such as `self`."""
    is_marked = hasattr(item, f"{hookspecs.PROJECT}_impl")
    if is_marked and name not in HOOKS:
        near = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"the hooks are {', '.join(HOOKS)}"
        raise PluginError(f"no hook is called {name!r}: {hint}")
    if is_marked and inspect.iscoroutinefunction(item):
        raise PluginError(f"{name} is a coroutine function: hooks are plain functions")
    if is_marked and (wrong := set(_parameters(item)[skip:]) - set(_parameters(_SPECS[name]))):
        known = ", ".join(_parameters(_SPECS[name]))
        raise PluginError(f"{name} is never given {', '.join(sorted(wrong))!r}, only: {known}")
    if not is_marked and name in HOOKS and is_own:
        raise PluginError(f"{name} would never be called: decorate it with @areal_sdk.hookimpl")


def _parameters(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)


def not_callable(item: object) -> str | None:
    """The fault of a dataset, a trainer or an algorithm; None without one."""
    return None if callable(item) else f"must be callable, not {type(item).__name__}"


def not_a(kind: type) -> Callable[[object], str | None]:
    """A check for items that must be instances of `kind`. The check returns the problem with an item, or None."""

    def check(item: object) -> str | None:
        return None if isinstance(item, kind) else f"must be a {kind.__name__}, not {item!r}"

    return check


def not_a_function(item: object) -> str | None:
    """The problem with a reward, if any."""
    if inspect.isclass(item):
        return f"must be a function, not the class {item.__qualname__}"
    if callable(item) and (taken := {"isolated", "weight"}.intersection(_parameters(item))):
        return f"has an option called {min(taken)!r}, which is the run's own: rename it"
    return not_callable(item)


def not_an_observer(item: object) -> str | None:
    """The problem with an observer, if any."""
    if not inspect.isclass(item):
        return f"must be a class, not {_describe(item)}"
    methods = dict(inspect.getmembers(item, inspect.isroutine))
    try:
        for name, method in methods.items():
            _check_hook(name, method, is_own=True, skip=1)
    except PluginError as exc:
        return f"has a wrong hook: {exc}"
    if not any(name in OBSERVING for name in methods):
        return f"observes nothing: give it methods that observe, {', '.join(OBSERVING)}"
    return None


def not_an_environment(item: object) -> str | None:
    """The problem with an environment, if any."""
    if (problem := not_a_subclass_of(Environment)(item)) is not None:
        return problem
    if inspect.isclass(item) and "isolated" in _parameters(item):
        return "has an option called 'isolated', which is the run's own: rename it"
    return None


def not_a_subclass_of(base: type) -> Callable[[object], str | None]:
    """A check for items that must be subclasses of `base`. The check returns the problem with an item, or None."""

    def check(item: object) -> str | None:
        if inspect.isclass(item) and issubclass(item, base):
            return None
        return f"must be a subclass of areal_sdk.{base.__name__}, not {_describe(item)}"

    return check


def _describe(item: object) -> str:
    return repr(getattr(item, "__qualname__", None) or item)
