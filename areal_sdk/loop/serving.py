"""Serve a model through the gateway until interrupted."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from areal_sdk.config import Config
from areal_sdk.gateway import Gateway, SamplingPolicy
from areal_sdk.loop.engines import make_engine
from areal_sdk.loop.models import find_model
from areal_sdk.loop.supervision import kept
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread


async def run_server(config: Config, *, plugins: Plugins, say: Callable[[str], None]) -> None:
    """Serve, say where, and run until cancelled."""
    model_dir = await in_thread(lambda: find_model(config.model), name="find model")
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-sdk-serve-"))
        engine = make_engine(config, model_dir, plugins=plugins, log_dir=Path(scratch))
        stack.push_async_callback(engine.aclose)
        await engine.start()
        engine = await stack.enter_async_context(kept(engine, say=say))
        gateway = Gateway(
            engine,
            model_dir=model_dir,
            model_name=config.model,
            sampling=SamplingPolicy(mode="respect", temperature=config.rollout.temperature),
            admin_key=config.gateway.admin_key,
            max_request_s=config.rollout.request_timeout_s,
        )
        await gateway.start(host=config.gateway.host, port=config.gateway.port)
        stack.push_async_callback(gateway.aclose)
        say(f"serving {config.model} at {gateway.base_url}")
        if config.gateway.admin_key is None:
            say(f"key: {gateway.admin_key}")
        await asyncio.Event().wait()
