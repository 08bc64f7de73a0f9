"""User code by file and name, in the main process and in its children alike.

A reference is `path/to/agent.py::Calculator` or `package.module:Calculator`. Children import what
a reference names; functions and classes themselves never travel.
"""

import contextvars
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from areal_sdk.errors import ConfigError, no_such_file

REGISTERED = "registered:"
"""Prefix of a reference to an object that a plugin in another virtual environment registers by name."""

_IMPORT_LOCK = threading.RLock()

_importing: contextvars.ContextVar[Path | None] = contextvars.ContextVar("importing", default=None)
"""The user's file whose top level is running."""


def load_user_module(path: Path) -> ModuleType:
    """Import a file of the user's, once, as running it would: its directory becomes importable.

    `__name__` is not `"__main__"`, so what stands under that guard does not run. A file inside a
    package is imported as a part of it, so that its relative imports work.
    """
    given = path.expanduser()
    path = given.resolve()
    if not path.is_file():
        raise no_such_file(given)
    if path.suffix != ".py":
        raise ConfigError(f"{path} is not a Python file (.py)")
    with _IMPORT_LOCK:
        root, dotted_name = _package_of(path)
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        outer = _importing.set(path)
        try:
            if dotted_name is not None:
                return importlib.import_module(dotted_name)
            return _import_file(path)
        except Exception as exc:  # the boundary: whatever the user's file raises
            raise ConfigError(f"{path} could not be imported: {_where(exc, path)}") from exc
        finally:
            _importing.reset(outer)


def refuse_while_importing(what: str) -> None:
    """Raise ConfigError if the top level of a user's file calls `what`: each worker that loads the file would call it
    again."""
    path = _importing.get()
    if path is not None:
        raise ConfigError(
            f"{what} would begin whenever {path.name} is imported, and worker processes import it: "
            'put the call under `if __name__ == "__main__":`'
        )


def load_user_object(reference: str) -> Any:
    """The class, function or other object that `reference` names."""
    path, separator, name = reference.rpartition("::")
    if separator:
        return _attribute(load_user_module(Path(path)), name, reference)
    module_name, separator, name = reference.partition(":")
    if not separator or not name:
        raise ConfigError(
            f"{reference!r} names no object: write file.py::Name or package.module:Name"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"{reference!r}: {exc}") from exc
    return _attribute(module, name, reference)


def reference_to(item: Any, *, module: ModuleType | None = None) -> str:
    """The reference by which another process finds `item`; `load_user_object` undoes it.

    An instance is found by the name it has at the top level of `module`. ConfigError for what only
    this process can know: lambdas, bound methods, things made inside functions or in a notebook.
    """
    name = getattr(item, "__qualname__", None)
    if name is None:
        module = module or sys.modules.get(type(item).__module__)
        name = next((key for key, value in vars(module or object).items() if value is item), None)
    else:
        module = sys.modules.get(getattr(item, "__module__", None) or "")
    if name is None or module is None:
        raise ConfigError(
            f"{item!r} has no name that another process could import: "
            "pass a class or a function defined in a .py file (workers = 0 and nodes = 1 keep it in this process)"
        )
    if "<lambda>" in name or "<locals>" in name:
        raise ConfigError(
            f"{name!r} cannot be found by another process: "
            "define it at the top level of a .py file, or keep it in this process (workers = 0, nodes = 1)"
        )
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        raise ConfigError(
            f"{name!r} is defined in a notebook or at a prompt, where no other process finds it: "
            "move it to a .py file, or keep it in this process (workers = 0, nodes = 1)"
        )
    reference = f"{Path(file).resolve()}::{name}"
    if _attribute(module, name, reference) is not item:
        raise ConfigError(
            f"in another process, {reference!r} would be another object than {item!r}: "
            "pass the object of that name, or keep it in this process (workers = 0, nodes = 1)"
        )
    return reference


def _package_of(path: Path) -> tuple[Path, str | None]:
    """The directory to import from, and the dotted name if the file is part of a package."""
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) == 1:
        return root, None
    return root, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_file(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"user_{path.stem}_{digest}"  # the same in every process, and never another module's
    for loaded in list(sys.modules.values()):
        # sys.modules may hold anything, None included; asking a lazy module would import it.
        is_same = getattr(loaded, "__dict__", {}).get("__file__") == str(path)
        if is_same and loaded.__name__ != "__main__":
            return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: ModuleType, name: str, reference: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = sorted(
                key
                for key, value in vars(module).items()
                if getattr(value, "__module__", None) == module.__name__
            )
            raise ConfigError(
                f"no {name!r} in {reference.removesuffix(name).rstrip(':')}; "
                f"defined there: {', '.join(public) or 'nothing'}"
            ) from None
    return found


def _where(exc: Exception, path: Path) -> str:
    """The error in one line, with the line of the user's file that led to it."""
    if isinstance(exc, SyntaxError):
        return f"line {exc.lineno}: {exc.msg}"
    lines = [f.lineno for f in traceback.extract_tb(exc.__traceback__) if f.filename == str(path)]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(exc).__name__}: {exc}"
