"""Tells the plugins of a run what happens in it."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pluggy

from areal_sdk.types import Episode, WeightUpdate

logger = logging.getLogger("areal_sdk.plugins")


class Observers:
    """Calls the `on_*` hooks of all plugins. A hook that raises is logged once; the run goes on."""

    def __init__(self, hooks: pluggy.PluginManager) -> None:
        self._hooks = hooks
        self.failures: Counter[tuple[str, str]] = Counter()
        """Exceptions by (plugin, hook)."""

    def on_run_start(self, name: str, run_dir: str, settings: Mapping[str, Any]) -> None:
        self._notify("on_run_start", name=name, run_dir=run_dir, settings=settings)

    @property
    def hear_episodes(self) -> bool:
        """Whether any plugin has the hook `on_episode`."""
        return bool(self._hooks.hook.on_episode.get_hookimpls())

    def on_episode(self, episode: Episode, dropped: str) -> None:
        self._notify("on_episode", episode=episode, dropped=dropped)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._notify("on_step", step=step, metrics=metrics)

    def on_eval_episode(self, name: str, split: str, episode: Episode) -> None:
        self._notify("on_eval_episode", name=name, split=split, episode=episode)

    def on_evaluation(self, name: str, split: str, step: int, metrics: Mapping[str, float]) -> None:
        self._notify("on_evaluation", name=name, split=split, step=step, metrics=metrics)

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
