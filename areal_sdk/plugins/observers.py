"""Calls the plugins that observe a run. A broken observer is named once; the run goes on."""

import logging
from collections import Counter
from collections.abc import Mapping

import pluggy

from areal_sdk.types import Episode, WeightUpdate

logger = logging.getLogger("areal_sdk.plugins")


class Observers:
    """`on_episode`, `on_step`, `on_weights`, `on_run_end`, as in `hookspecs`."""

    def __init__(self, hooks: pluggy.PluginManager) -> None:
        self._hooks = hooks
        self.failures: Counter[tuple[str, str]] = Counter()
        """Exceptions by (plugin, hook)."""

    def on_episode(self, episode: Episode, dropped: str) -> None:
        self._notify("on_episode", episode=episode, dropped=dropped)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._notify("on_step", step=step, metrics=metrics)

    def on_weights(self, update: WeightUpdate) -> None:
        self._notify("on_weights", update=update)

    def on_run_end(self, run_dir: str, summary: Mapping[str, float]) -> None:
        self._notify("on_run_end", run_dir=run_dir, summary=summary)

    def _notify(self, hook: str, **arguments: object) -> None:
        for observer in getattr(self._hooks.hook, hook).get_hookimpls():
            try:
                observer.function(*(arguments[name] for name in observer.argnames))
            except Exception as exc:  # noqa: BLE001 - attributed: the plugin is named
                self._report(observer.plugin_name, hook, exc)

    def _report(self, plugin: str, hook: str, error: Exception) -> None:
        self.failures[plugin, hook] += 1
        if self.failures[plugin, hook] == 1:
            logger.warning(
                "plugin %s: %s raised %s: %s (later failures of this hook are counted, not shown)",
                plugin,
                hook,
                type(error).__name__,
                error,
                exc_info=error if logger.isEnabledFor(logging.DEBUG) else None,
            )
