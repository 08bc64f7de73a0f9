"""Serving through a gateway, or through several gateway processes, until interrupted.

With a run directory, every session of callers is recorded in the directory.
"""

import asyncio
import json
import logging
import os
import shlex
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from areal_sdk import certificate
from areal_sdk.backends.supervised import supervised
from areal_sdk.config import Config
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.gateway.server import STOP_GRACE_S
from areal_sdk.gateway.sessions.external import SPLIT
from areal_sdk.loop.plan.models import FoundModel
from areal_sdk.loop.plan.parts import make_engine
from areal_sdk.loop.services.gateway import (
    callers_sampling,
    follow_keys,
    live_limits,
    make_backend,
    make_gateway,
    read_users,
    routes_of,
)
from areal_sdk.loop.services.gateway_process import open_gateways
from areal_sdk.plugins import Plugins
from areal_sdk.process.memory import short_collections
from areal_sdk.rollout.callers import CallerSession, to_episode
from areal_sdk.rollout.gateways.pool import GatewayPool
from areal_sdk.rollout.gateways.sessions import GatewaySession
from areal_sdk.routes import Backend
from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.telemetry.episode_log import PreparedRecord

UPSTREAM_KEY = "AREAL_SDK_UPSTREAM_KEY"
"""The environment variable with the provider's key: no file of the run holds the key."""

logger = logging.getLogger(__name__)


async def run_server(
    config: Config,
    *,
    model: FoundModel,
    plugins: Plugins,
    run_dir: RunDir | None,
    say: Callable[[str], None],
) -> None:
    """Serve, say where, and run until cancelled. With a run directory, keep every session in it."""
    named = certificate.format_in_key(model.renderer, config.gateway.tool_format)
    if doubt := certificate.warning(model.directory, tool_format=named):
        say(doubt)
    async with AsyncExitStack() as stack:
        if run_dir is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-sdk-serve-"))
            log_dir = Path(scratch)
        else:
            log_dir = run_dir.logs
        engine = make_engine(config, model.directory, plugins=plugins, log_dir=log_dir)
        stack.push_async_callback(engine.aclose)
        await engine.start()
        served = await stack.enter_async_context(supervised(engine, say=say))
        recorder = None
        if run_dir is not None:
            recorder = stack.enter_context(
                Recorder(run_dir, served, keep_bytes=config.run.keep_bytes)
            )
        gateway: Gateway | GatewayPool
        if config.serve.processes > 1:
            gateway = await stack.enter_async_context(
                open_gateways(
                    config,
                    served,
                    model=model,
                    log_dir=log_dir,
                    run_dir=None if run_dir is None else run_dir.path,
                    say=say,
                )
            )
            gateway.observe(recorder)
        else:
            gateway = make_gateway(
                config,
                served,
                renderer=model.renderer,
                sampling=callers_sampling(config),
                routes=routes_of(plugins),
                run_dir=None if run_dir is None else run_dir.path,
            )
            gateway.external.observe(recorder)
            stack.push_async_callback(gateway.aclose)
            await gateway.start(host=config.gateway.host, port=config.gateway.port)
        if run_dir is None:
            say("sessions and rewards are not kept: that takes --record or --learn")
        announce(config, gateway, say=say)
        with short_collections():
            await _until_stopped(say)


def upstream_backend(config: Config, plugins: Plugins) -> Backend:
    """The backend that answers in place of a model. ConfigError if `serve.upstream` cannot be used."""
    assert config.serve.upstream is not None, "that is what decides"
    return make_backend(
        config.serve.upstream,
        plugins=plugins,
        api_key=os.environ.get(UPSTREAM_KEY, ""),
        max_request_s=config.rollout.request_timeout_s,
    )


async def run_upstream(
    config: Config,
    backend: Backend,
    *,
    plugins: Plugins,
    run_dir: RunDir | None,
    say: Callable[[str], None],
) -> None:
    """Pass calls on to another provider, say where, and run until cancelled."""
    gateway = BackendGateway(
        backend,
        admin_key=config.gateway.admin_key,
        users=read_users(config),
        keys=follow_keys(config),
        quota=config.serve,
        external=live_limits(config),
        cors_origins=config.serve.cors_origins,
        routes=routes_of(plugins),
        run_dir=None if run_dir is None else run_dir.path,
    )
    async with AsyncExitStack() as stack:
        if run_dir is not None:
            gateway.external.observe(
                stack.enter_context(Recorder(run_dir, keep_bytes=config.run.keep_bytes))
            )
        stack.push_async_callback(gateway.aclose)
        await gateway.start(host=config.gateway.host, port=config.gateway.port)
        if run_dir is not None:
            say(f"recording: what every caller sends and is answered is written to {run_dir.path}")
        if not os.environ.get(UPSTREAM_KEY):
            say(
                f"no key for the provider: calls go to it without one, unless {UPSTREAM_KEY} is set"
            )
        say("another provider gives text, not tokens: nothing that is recorded can be trained")
        announce(config, gateway, say=say)
        await _until_stopped(say)


async def _until_stopped(say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, and say that it was noticed, because running answers get some time."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        grace = f"answers that are running get up to {STOP_GRACE_S:g} s"
        say(f"stopping: {grace} (Ctrl-C again: at once)")
        raise


def announce(
    config: Config, gateway: Gateway | GatewayPool | BackendGateway, *, say: Callable[[str], None]
) -> None:
    """Print the gateway's address, its key, and a first request to paste."""
    url, is_made_up = gateway.base_url, config.gateway.admin_key is None
    say(f"serving {config.serve.upstream or config.model} at {url}")
    known = "the one you gave (AREAL_SDK_ADMIN_KEY, gateway.admin_key or --admin-key)"
    say(f"key: {gateway.admin_key if is_made_up else known}")
    key = gateway.admin_key if is_made_up else "$KEY"
    in_python = f'"{key}"' if is_made_up else 'os.environ["KEY"]'
    model = "MODEL" if config.serve.upstream else config.model
    body = {"model": model, "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 64}
    say("try it:" if is_made_up else "try it, with your key in the environment variable KEY:")
    say(
        f"  curl {url}/chat/completions -H 'Content-Type: application/json' "
        f'-H "Authorization: Bearer {key}" -d {shlex.quote(json.dumps(body))}'
    )
    say(f'  OpenAI(base_url="{url}", api_key={in_python})')
    say(f'  Anthropic(base_url="{url.removesuffix("/v1")}", api_key={in_python})')


class Recorder:
    """Writes sessions as they end."""

    def __init__(
        self, run_dir: RunDir, engine: InferenceEngine | None = None, *, keep_bytes: float
    ) -> None:
        self._episodes = EpisodeWriter(run_dir.episodes, keep_bytes=keep_bytes, say=logger.warning)
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._episodes.close()

    def opened(self, live: CallerSession) -> None:
        """Do nothing: a session is written when it ends."""

    def finished(self, live: CallerSession) -> None:
        if isinstance(live, GatewaySession):
            if live.packed:
                packed, index = map(bytes, live.packed)
                record = PreparedRecord(packed, index, SPLIT)
                self._episodes.append(record, version=live.version)
        elif live.session.turns:
            version = self._engine.version if self._engine is not None else None
            self._episodes.write(to_episode(live), version=version, split=SPLIT)
