"""`check_plugin`: does everything that an installed plugin brings keep its contract?

The plugin is loaded in a process of its own, which may crash or hang: then the item is named, and the others are
still checked.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from areal_sdk.errors import (
    ArealError,
    CallTimeoutError,
    ChildDiedError,
    ConfigError,
    RemoteError,
)
from areal_sdk.plugins import Plugins, PluginSource, installed_plugins, load_plugins
from areal_sdk.process import Channel, Child, ProcessSpec, spawn
from areal_sdk.process.spec import last_lines
from areal_sdk.testing.conformance import ConformanceError
from areal_sdk.testing.items import check_item

WORKER = "areal_sdk.testing.plugins:main"
HEAVY = ("torch", "transformers", "tensorflow", "jax", "ray", "sglang", "datasets")
"""Packages that take seconds to import; a plugin is imported at every start of every command."""
ITEM_TIMEOUT_S = 120.0
"""Seconds for one item of a plugin to be imported and tried."""

Options = Mapping[str, Mapping[str, Any]]
"""Options by table, such as `reward.polite`."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a plugin registered: its kind as in `register_rewards`, and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one item, or on the plugin itself."""

    what: str
    problem: str = ""
    """The broken part of the contract; empty if the contract is kept."""


@dataclass(slots=True)
class Suspect:
    """The process that loaded the plugin. A new one takes its place when it was lost."""

    distribution: str
    log_dir: Path
    file: str | None = None
    timeout_s: float = ITEM_TIMEOUT_S
    _child: Child | None = field(default=None, repr=False)

    async def items(self) -> list[Item]:
        """The items that the plugin brings; ConformanceError if the plugin cannot be loaded."""
        return [Item(*pair) for pair in await self._call("list", {})]

    async def check(self, item: Item, *, options: Options, tasks: Path | None = None) -> None:
        """Check the item; ConformanceError names its first problem."""
        order = {
            "kind": item.kind,
            "name": item.name,
            "options": {table: dict(values) for table, values in options.items()},
            "tasks": None if tasks is None else str(tasks),
        }
        await self._call("check", order)

    async def _call(self, method: str, payload: Mapping[str, Any]) -> Any:
        """Ask the process; ConformanceError if it fails, crashes or hangs."""
        try:
            child = await self._living()
            reply = await child.call(method, dict(payload), timeout_s=self.timeout_s)
        except RemoteError as exc:
            raise ConformanceError(
                exc.message if exc.kind in _OURS else f"{exc.kind}: {exc.message}"
            ) from None
        except CallTimeoutError:
            await self.aclose()
            raise ConformanceError(
                f"it gave no answer within {self.timeout_s:g} s, so its process was killed: give waits "
                "a deadline, and computing that takes long a thread (asyncio.to_thread)"
            ) from None
        except ChildDiedError as exc:
            await self.aclose()
            how = str(exc).partition("; log:")[0]  # the log goes with the check
            lines = last_lines(self.log_dir / "plugin.log")
            wrote = f"; it wrote: {lines[-1][:200]}" if lines else ""
            raise ConformanceError(
                f"it ended its process ({how}): raise an exception instead{wrote}"
            ) from None
        return reply.payload

    async def _living(self) -> Child:
        if self._child is None:
            args = {"distribution": self.distribution, "file": self.file}
            self._child = await spawn(
                ProcessSpec("plugin", WORKER, args),
                log_dir=self.log_dir,
                start_timeout_s=ITEM_TIMEOUT_S,
            )
        return self._child

    async def aclose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.aclose(grace_s=0.5)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_OURS = {"ConformanceError", "ConfigError", "PluginError", "MissingExtraError"}
"""Errors whose message says it all."""


async def check_plugin(
    distribution: str, *, options: Options | None = None, tasks: Path | None = None
) -> list[str]:
    """Check an installed plugin; ConformanceError names every problem.

    `options` by table, for items that need some; `tasks` to check rewards and environments with, in
    place of the plugin's own datasets. Returns what was checked, such as `reward 'polite'`.
    """
    verdicts = await judge_plugin(distribution, options=options or {}, tasks=tasks)
    problems = [f"{verdict.what}: {verdict.problem}" for verdict in verdicts if verdict.problem]
    if problems:
        raise ConformanceError("\n".join(problems))
    return [verdict.what for verdict in verdicts]


async def judge_plugin(
    distribution: str,
    *,
    options: Options,
    tasks: Path | None = None,
    file: Path | None = None,
    timeout_s: float = ITEM_TIMEOUT_S,
) -> list[Verdict]:
    """A verdict on the plugin, and on each thing that it brings. `file`: a plugin in a file."""
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="areal-sdk-check-") as scratch:
        suspect = Suspect(distribution, Path(scratch), str(file) if file else None, timeout_s)
        async with suspect:
            what = f"plugin {distribution}"
            try:
                items = await suspect.items()
            except ConformanceError as exc:
                return [Verdict(what, str(exc))]
            verdicts.append(Verdict(what))
            for item in items:
                try:
                    await suspect.check(item, options=options, tasks=tasks)
                except ConformanceError as exc:
                    verdicts.append(Verdict(str(item), str(exc)))
                else:
                    verdicts.append(Verdict(str(item)))
    return verdicts


def main(channel: Channel, args: Mapping[str, Any]) -> None:
    """The entry point of the process. It loads the plugin only when it is asked to, so that a failing import is
    reported too."""
    channel.ready()
    plugins: Plugins | None = None
    with asyncio.Runner() as runner:
        while True:
            request = channel.receive()
            if request is None:
                continue
            try:
                if plugins is None:
                    plugins = load_suspect(args["distribution"], file=args["file"])
                if request.method == "list":
                    request.reply([[item.kind, item.name] for item in items_of(plugins)])
                    continue
                runner.run(check_item(plugins, **request.payload))
            except (Exception, SystemExit) as exc:  # noqa: BLE001 - the other side names it
                request.fail(exc)
            else:
                request.reply()


def load_suspect(distribution: str, *, file: str | None = None) -> Plugins:
    """The plugins of one distribution alone, or one file; ConformanceError if they fail to load."""
    sources = [] if file else sources_of(distribution)
    before = set(sys.modules)
    try:
        plugins = load_plugins(sources=sources, files=[Path(file)] if file else [])
    except ArealError as exc:
        raise ConformanceError(str(exc)) from None
    if failures := plugins.failures():
        raise ConformanceError("; ".join(failures))
    heavy = [name for name in HEAVY if name in sys.modules and name not in before]
    if heavy:
        raise ConformanceError(
            f"importing it imports {', '.join(heavy)}, which would slow every command down: register "
            'items by reference ("package.module:name"), and import inside their modules'
        )
    if not items_of(plugins) and not any(report.observes for report in plugins.report()):
        raise ConformanceError(
            "it brings nothing and observes nothing: decorate its hooks with @areal_sdk.hookimpl"
        )
    return plugins


def sources_of(distribution: str) -> list[PluginSource]:
    """The entry points of a distribution. ConfigError if the distribution is no installed plugin."""
    wanted = re.sub(r"[-_.]+", "-", distribution).lower()
    known = installed_plugins()
    found = [s for s in known if re.sub(r"[-_.]+", "-", s.distribution).lower() == wanted]
    if not found:
        names = ", ".join(sorted({source.distribution for source in known}))
        raise ConfigError(
            f"no installed plugin {distribution!r}; installed: {names}; a file needs --plugin FILE"
        )
    return found


def items_of(plugins: Plugins) -> list[Item]:
    """The items that the plugins bring, datasets first: the other items are tried on the tasks of these."""
    items = [
        Item(kind, name)
        for report in plugins.report()
        for kind, names in report.brings.items()
        for name in names
    ]
    return sorted(items, key=lambda item: item.kind != "dataset")
