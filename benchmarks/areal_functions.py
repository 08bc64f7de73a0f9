"""AReaL's own functions, imported out of its wheel without an installation.

What the wheel imports beside them and they never call (Ray, Flask and so on) are empty modules.
"""

import sys
import zipfile
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ABSENT = frozenset(
    {
        "aiofiles",
        "colorlog",
        "einops",
        "flask",
        "httpx",
        "hydra",
        "lark",
        "numba",
        "omegaconf",
        "PIL",
        "pybase64",
        "ray",
        "swanlab",
        "tabulate",
        "tenacity",
        "tensorboardX",
        "torchdata",
        "trackio",
        "uvloop",
        "wandb",
        "werkzeug",
    }
)


class Anything(type):
    """The type of a class that stands for whatever an absent module has: a class, a function, a
    decorator."""

    def __getattr__(cls, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (Nothing,), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else type.__call__(cls)

    def __or__(cls, other: Any) -> Any:
        return Any

    __ror__ = __or__


class Nothing(metaclass=Anything):
    def __call__(self, decorated: Any = None, *args: Any, **kwargs: Any) -> Any:
        return decorated

    def __getattr__(self, name: str) -> "Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Empty(ModuleType):
    def __getattr__(self, name: str) -> Anything:
        return Anything.__getattr__(Nothing, name)


class Absent(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@dataclass(frozen=True)
class Theirs:
    """The functions, and the configurations that they read."""

    actor: Any
    functional: Any
    config: Any


def import_areal(wheel: Path, directory: Path) -> Theirs:
    """The wheel is unpacked into `directory`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    sys.path.insert(0, str(directory))
    absent = Absent()
    sys.meta_path.append(absent)
    import areal.api.cli_args as config
    import areal.trainer.ppo.actor as actor
    import areal.utils.functional as functional

    actor.logger.disabled = True  # it writes through a package that is absent
    sys.meta_path.remove(absent)
    for name in [name for name in sys.modules if name.partition(".")[0] in ABSENT]:
        del sys.modules[name]  # torch must not find them when it ends
    return Theirs(actor, functional, config)
