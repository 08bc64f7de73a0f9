"""Names of one kind, each with one owner, resolved on first use."""

import difflib
import importlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from types import ModuleType
from typing import Generic, TypeVar, cast

from areal_sdk.errors import ConfigError, MissingExtraError, PluginError
from areal_sdk.errors.packages import how_to_install
from areal_sdk.plugins.discovery import DISABLE_VARIABLE, PluginSource
from areal_sdk.process.user_code import reference_to

logger = logging.getLogger("areal_sdk.plugins")

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Claim(Generic[T]):
    """One owner's claim on a name."""

    item: T | str
    """The item, or `"module:attribute"`."""
    owner: PluginSource


class Registry(Generic[T]):
    """The items that plugins registered under one kind (`"reward"`, `"engine"`, ...)."""

    def __init__(
        self,
        kind: str,
        *,
        check: Callable[[object], str | None] = lambda _item: None,
        absent: Callable[[], str] = lambda: "",
    ) -> None:
        self.kind = kind
        self._check = check
        """Returns the problem with an item, if any."""
        self._absent = absent
        """Returns the plugins that failed or are disabled, which may bring a missing name."""
        self._claims: dict[str, list[Claim[T]]] = {}
        self._resolved: dict[str, T] = {}

    def register(self, name: str, item: T | str, *, owner: PluginSource) -> None:
        """Claim `name`. If two owners claim one name, this is reported, and neither of them gets it."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(
                f"{self.kind} name {name!r}: use letters, digits, '_', '.', '+' and '-'"
            )
        if isinstance(item, str):
            if not _REFERENCE.fullmatch(item):
                raise PluginError(
                    f'{self.kind} {name!r}: {item!r} is not a reference: write "module:attribute"'
                )
        elif problem := self._check(item):
            raise PluginError(f"{self.kind} {name!r} {problem}")
        claims = self._claims.setdefault(name, [])
        if any(claim.owner == owner for claim in claims):
            raise PluginError(f"{self.kind} {name!r} is registered twice by {owner}")
        claims.append(Claim(item, owner))

    def forget(self, owner: PluginSource) -> None:
        """Drop everything `owner` registered."""
        for name in list(self._claims):
            rest = [claim for claim in self._claims[name] if claim.owner != owner]
            if len(rest) != len(self._claims[name]):
                self._resolved.pop(name, None)
            if rest:
                self._claims[name] = rest
            else:
                del self._claims[name]

    def names(self) -> list[str]:
        return sorted(self._claims)

    def owned_by(self, owner: PluginSource) -> list[str]:
        return [n for n in self.names() if any(c.owner == owner for c in self._claims[n])]

    def owners(self, name: str) -> list[str]:
        """The distributions that claim `name`."""
        return [str(claim.owner) for claim in self._claims.get(name, ())]

    def conflict(self, name: str) -> str | None:
        """The problem, and its cure, if several plugins claim `name`."""
        if len(self._claims.get(name, ())) < 2:
            return None
        owners = self.owners(name)
        return (
            f"{self.kind} {name!r} is registered twice, by {' and by '.join(owners)}: uninstall one "
            f"of them, or set {DISABLE_VARIABLE}={owners[-1]}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._claims

    def get(self, name: str) -> T:
        """The item called `name`, imported now if it was registered by reference."""
        if name not in self._resolved:
            self._resolved[name] = self._resolve(name, self._claim(name))
        return self._resolved[name]

    def reference(self, name: str) -> str:
        """`"module:attribute"` of the item called `name`, for another process to import. An instance has a name in its
        plugin's module."""
        claim = self._claim(name)
        if isinstance(claim.item, str):
            return claim.item
        module = claim.owner.load()
        return reference_to(claim.item, module=module if isinstance(module, ModuleType) else None)

    def usable(self) -> dict[str, T]:
        """The items in the order of their registration. A plugin's item that fails to load is left out, with a warning."""
        found = {}
        for name in self._claims:
            try:
                found[name] = self.get(name)
            except (ConfigError, PluginError) as exc:
                logger.warning("%s; it is left out", exc)
        return found

    def _claim(self, name: str) -> Claim[T]:
        if name not in self._claims:
            raise ConfigError(self._unknown(name))
        if problem := self.conflict(name):
            raise PluginError(problem)
        return self._claims[name][0]

    def _resolve(self, name: str, claim: Claim[T]) -> T:
        if not isinstance(claim.item, str):
            return claim.item
        what = f"{self.kind} {name!r} of {claim.owner}"
        module_name, _, attribute = claim.item.partition(":")
        try:
            item: object = importlib.import_module(module_name)
            for part in attribute.split("."):
                item = getattr(item, part)
        except MissingExtraError:
            raise
        except ModuleNotFoundError as exc:
            raise _missing_package(what, str(claim.owner), exc) from exc
        except Exception as exc:
            raise PluginError(f"{what}: {claim.item}: {type(exc).__name__}: {exc}") from exc
        if problem := self._check(item):
            raise PluginError(f"{what}: {claim.item} {problem}")
        return cast(T, item)

    def _unknown(self, name: str) -> str:
        if cure := how_to_install(self.kind, name):
            return cure
        known = self.names()
        message = f"unknown {self.kind} {name!r}; known: {', '.join(known) or 'none'}"
        if longer := [one for one in known if one.startswith(f"{name}.")]:
            message += f'; a name with dots stands in quotes in a key: ."{longer[0]}".'
        elif near := difflib.get_close_matches(name, known):
            # Swapped letters are the likelier slip: "gpro" is as close to "gspo" as to "grpo".
            meant = next((one for one in near if sorted(one) == sorted(name)), near[0])
            message += f"; did you mean {meant!r}?"
        else:
            message += "; one that a file of yours registers needs --plugin FILE"
        if absent := self._absent():
            message += f" ({absent})"
        return message


def _missing_package(
    what: str, owner: str, error: ModuleNotFoundError
) -> ConfigError | PluginError:
    """The error for a missing package. It names the pip command if the owner declares the package under an extra."""
    package = (error.name or "").partition(".")[0]
    extra = _extra_with(owner, package)
    if extra is None:
        return PluginError(f"{what}: {error}")
    if owner == "areal-sdk":
        return MissingExtraError(package, extra=extra, needed_for=what)
    return ConfigError(f'{what} needs {package}: pip install "{owner}[{extra}]"')


def _extra_with(distribution: str, package: str) -> str | None:
    try:
        requirements = requires(distribution) or []
    except (PackageNotFoundError, ValueError):
        return None
    for requirement in requirements:
        named = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", requirement)
        if named and extra and named[0].replace("-", "_").lower() == package.lower():
            return extra[1]
    return None
