"""The observer `otel`: what a run tells it leaves for a collector, and waits for Prometheus."""

import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from areal_sdk import ConfigError, Episode, WeightUpdate, hookimpl
from areal_sdk_otel import numbers
from areal_sdk_otel.names import Name
from areal_sdk_otel.numbers import Numbers
from areal_sdk_otel.otlp import Attribute, Signal
from areal_sdk_otel.outbox import Outbox
from areal_sdk_otel.service import Service
from areal_sdk_otel.spans import Teller

NO_COLLECTOR = "off"


class Otel:
    """Sends each episode as a trace, and serves the numbers of the run."""

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        content: bool = False,
        metrics_host: str = "127.0.0.1",
        metrics_port: int = 9464,
        finish_s: float = 5.0,
    ) -> None:
        """`endpoint`: the collector's address without `/v1/traces`; default: OTEL_EXPORTER_OTLP_ENDPOINT, else
        http://127.0.0.1:4318. `off`: only the numbers are served. `content`: texts leave the run too. `metrics_port`:
        0 for a free one. `finish_s`: how long the end of a run waits for a collector.
        """
        self._endpoint = endpoint or os.environ.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"
        )
        if self._endpoint != NO_COLLECTOR and not _is_address(self._endpoint):
            raise ConfigError(
                f"[observer.otel] endpoint = {self._endpoint!r}: give an address such as "
                f"http://127.0.0.1:4318, or {NO_COLLECTOR!r}"
            )
        if not 0 <= metrics_port < 1 << 16:
            raise ConfigError(
                f"[observer.otel] metrics_port = {metrics_port}: give a port, or 0 for a free one"
            )
        self._content = content
        self._address = (metrics_host, metrics_port)
        self._finish_s = finish_s
        self._numbers = Numbers()
        self._outboxes: dict[Signal, Outbox] = {}
        self._teller: Teller | None = None
        self._service: Service | None = None

    @hookimpl
    def on_run_start(self, name: str, run_dir: str, settings: Mapping[str, Any]) -> None:
        model = PurePath(str(settings.get("model", ""))).name
        self._teller = Teller(agent=_agent(settings) or name, model=model, content=self._content)
        resource: dict[str, Attribute] = {
            Name.SERVICE: os.environ.get("OTEL_SERVICE_NAME", "areal-sdk"),
            Name.SERVICE_VERSION: version("areal-sdk"),
            Name.SERVICE_INSTANCE: name,
        }
        if self._endpoint != NO_COLLECTOR:
            self._outboxes = {
                signal: Outbox(signal, endpoint=self._endpoint, resource=resource)
                for signal in Signal
            }
        self._service = Service(
            list(self._outboxes.values()),
            metrics=lambda: self._text(name),
            address=self._address,
            headers=_headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        )
        self._service.start()
        if self._service.url:
            click.echo(f"metrics: {self._service.url}", err=True)

    @hookimpl
    def on_episode(self, episode: Episode, dropped: str) -> None:
        self._tell(episode, split="train", dropped=dropped)

    @hookimpl
    def on_eval_episode(self, name: str, split: str, episode: Episode) -> None:
        self._tell(episode, split=split, dropped="")

    @hookimpl
    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._numbers.step(step, metrics)

    @hookimpl
    def on_evaluation(self, name: str, split: str, step: int, metrics: Mapping[str, float]) -> None:
        for metric, value in metrics.items():
            self._numbers.set(numbers.EVALUATION, value, split=split, name=metric)

    @hookimpl
    def on_weights(self, update: WeightUpdate) -> None:
        self._numbers.set(numbers.VERSION, update.version)

    @hookimpl
    def on_run_end(self, run_dir: str) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.stop(within_s=self._finish_s)

    def _tell(self, episode: Episode, *, split: str, dropped: str) -> None:
        self._numbers.episode(episode, split=split, dropped=dropped)
        if self._outboxes and self._teller is not None:
            trace = self._teller.tell(episode, split=split, dropped=dropped, now_ns=time.time_ns())
            self._outboxes[Signal.TRACES].put(trace.spans)
            self._outboxes[Signal.LOGS].put(trace.events)

    def _text(self, run: str) -> str:
        for signal, outbox in self._outboxes.items():
            for fate, number in (("sent", outbox.num_sent), ("lost", outbox.num_lost)):
                self._numbers.set(numbers.EXPORTED, number, signal=signal, fate=fate)
        return self._numbers.text(run=run)


def _is_address(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _agent(settings: Mapping[str, Any]) -> str:
    """The name of the agent that plays the episodes, without its directory, or of the environment.

    >>> _agent({"agent": "/home/me/agents.py:Guesser"}), _agent({"agent": {"name": "textarena"}}), _agent({})
    ('agents.py:Guesser', 'textarena', '')
    """
    agent = settings.get("agent") or settings.get("env") or ""
    if isinstance(agent, Mapping):
        agent = agent.get("name") or agent.get("path") or ""
    return PurePath(str(agent)).name


def _headers(text: str) -> dict[str, str]:
    """The headers of requests, from the form that OpenTelemetry's variable has.

    >>> _headers("Authorization=Basic%20YTpi, x-team = rl")
    {'Authorization': 'Basic YTpi', 'x-team': 'rl'}
    """
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}
