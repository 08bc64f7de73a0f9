"""A rollout node over a scripted engine: the entry that the tests of nodes launch."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import EngineError
from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.process import JSON, Channel
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.nodes.server import NodeServer
from areal_sdk.telemetry.live.waits import waiting
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Task, WeightUpdate


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    asyncio.run(_serve(channel, args))


async def _serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    model_dir = Path(args["model_dir"])
    engine = ScriptedEngine("four", model_dir=model_dir)
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()

    num_told = 0

    async def told(state: Mapping[str, Any]) -> None:
        nonlocal num_told
        num_told += 1
        if num_told <= state.get("refused_until", 0):
            raise EngineError("the engine is away")
        await engine.update_weights(WeightUpdate(state["version"], None))

    await told(args["state"])
    server = NodeServer(
        channel,
        make_runner=lambda stage: EpisodeRunner(
            play, gateway=gateway, split=stage.split, sampling=stage.sampling
        ),
        told=told,
    )
    channel.ready({})
    await server.run()
    await gateway.aclose()


async def play(task: Task, context: EpisodeContext) -> float:
    """Two turns, then what the task asks for: `then` is hang, die, die_once or nothing."""
    messages = [{"role": "user", "content": task.data.get("question", "2+2?")}]
    turn = await context.generate(messages)
    messages += [turn.message, {"role": "user", "content": "sure?"}]
    await context.generate(messages)
    match task.data.get("then"):
        case "hang":
            async with waiting("a tool that never answers", timeout_s=600):
                await asyncio.Event().wait()
        case "die":
            os._exit(7)
        case "die_once":
            with suppress(FileNotFoundError):
                os.unlink(task.data["marker"])
                os._exit(7)
        case _:
            pass
    return 0.5
