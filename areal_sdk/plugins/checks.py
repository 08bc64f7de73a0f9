"""Checks of plugins: hooks that will be called, items of the right kind."""

import difflib
import inspect
from collections.abc import Callable

from areal_sdk import hookspecs
from areal_sdk.errors import PluginError

_SPECS = {
    name: item
    for name, item in vars(hookspecs).items()
    if inspect.isfunction(item) and name.startswith(("register_", "on_"))
}
HOOKS = tuple(_SPECS)
"""The name of every hook, in the order of `hookspecs`."""


def check_hooks(plugin: object) -> None:
    """Refuse hooks that would silently do nothing: misspelt, unmarked, or coroutines."""
    module = getattr(plugin, "__name__", "")
    for name, item in vars(plugin).items():
        if not inspect.isroutine(item):
            continue
        is_marked = hasattr(item, f"{hookspecs.PROJECT}_impl")
        if is_marked and name not in HOOKS:
            near = difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the hooks are {', '.join(HOOKS)}"
            raise PluginError(f"no hook is called {name!r}: {hint}")
        if is_marked and inspect.iscoroutinefunction(item):
            raise PluginError(f"{name} is a coroutine function: hooks are plain functions")
        if is_marked and (wrong := set(_parameters(item)) - set(_parameters(_SPECS[name]))):
            known = ", ".join(_parameters(_SPECS[name]))
            raise PluginError(f"{name} is never given {', '.join(sorted(wrong))!r}, only: {known}")
        if not is_marked and name in HOOKS and getattr(item, "__module__", "") == module:
            raise PluginError(f"{name} would never be called: decorate it with @areal_sdk.hookimpl")


def _parameters(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)


def not_callable(item: object) -> str | None:
    """What is wrong with a dataset, a trainer or an algorithm, if anything."""
    return None if callable(item) else f"must be callable, not {type(item).__name__}"


def not_a_function(item: object) -> str | None:
    """The problem with a reward, if any."""
    if inspect.isclass(item):
        return f"must be a function, not the class {item.__qualname__}"
    if callable(item) and "weight" in _parameters(item):
        return "has an option called 'weight', which is the run's own: rename it"
    return not_callable(item)


def not_a_subclass_of(base: type) -> Callable[[object], str | None]:
    """A check whose result is the problem with an item that must be a subclass of `base`, if any."""

    def check(item: object) -> str | None:
        if inspect.isclass(item) and issubclass(item, base):
            return None
        return f"must be a subclass of areal_sdk.{base.__name__}, not {_describe(item)}"

    return check


def _describe(item: object) -> str:
    return repr(getattr(item, "__qualname__", None) or item)
