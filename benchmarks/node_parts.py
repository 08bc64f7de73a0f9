"""A rollout node of `nodes.py`: a real gateway and agent over a scripted engine."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.agent import EpisodeContext
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.process import JSON, Channel
from areal_sdk.process.memory import short_collections
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.nodes.server import NodeServer
from areal_sdk.testing import Reply, ScriptedEngine
from areal_sdk.types import Task, WeightUpdate


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    asyncio.run(_serve(channel, args))


async def _serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    model_dir = Path(args["model_dir"])
    sampled = Reply([97 + i % 26 for i in range(args["tokens"])], stop=False)
    engine = ScriptedEngine(sampled, model_dir=model_dir, tokens_per_chunk=args["tokens"])
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()

    async def told(state: Mapping[str, Any]) -> None:
        await engine.update_weights(WeightUpdate(state["version"], None))

    await told(args["state"])
    server = NodeServer(
        channel,
        make_runner=lambda stage: EpisodeRunner(play, gateway=gateway, split=stage.split),
        told=told,
    )
    channel.ready({})
    with short_collections():
        await server.run()
    await gateway.aclose()


async def play(task: Task, context: EpisodeContext) -> float:
    messages = [{"role": "user", "content": task.data["question"]}]
    for _ in range(task.data["turns"]):
        turn = await context.generate(messages)
        messages += [turn.message, {"role": "user", "content": "go on"}]
    return float(hash(context.episode_id) % 7) / 7
