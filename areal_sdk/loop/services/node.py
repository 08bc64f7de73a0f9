"""The entry of a rollout node: the players of a run in a process of its own, and no engine or trainer.

The main process names agent, model, rewards and the address of the engine. Both sides are in this module.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from areal_sdk.config import Config
from areal_sdk.engine import EngineClient, EngineEntrance, EngineInfo
from areal_sdk.loop.plan.models import FoundModel, load_renderer
from areal_sdk.loop.plan.parts import load_plugins_of
from areal_sdk.loop.plan.program import Program, command_program
from areal_sdk.loop.services.gateway import routes_of
from areal_sdk.loop.services.players import open_players
from areal_sdk.loop.shutdown import run_to_the_end
from areal_sdk.process import JSON, Channel, ProcessSpec
from areal_sdk.process.memory import short_collections
from areal_sdk.process.user_code import load_user_object
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.pool import AgentPool, playable
from areal_sdk.rollout.judging.reward_pool import RewardSpec
from areal_sdk.rollout.nodes.episode_wire import Stage
from areal_sdk.rollout.nodes.server import NodeServer
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.journal import Journal

ENTRY = "areal_sdk.loop.services.node:main"
HOST = "127.0.0.1"
"""Address of a node's gateway, which only agents on the node's machine call."""


def node_specs(
    config: Config,
    program: Program,
    *,
    model: FoundModel,
    rewards: Sequence[RewardSpec],
    log_dir: Path,
    info: EngineInfo,
    entrance: EngineEntrance,
) -> Callable[[int, Mapping[str, Any]], ProcessSpec]:
    """A function that makes a node's process from the node's number and the state of the engine's entrance."""
    agent = program.agent
    common: dict[str, JSON] = {
        "config": config.model_dump(mode="json"),
        "agent": agent.as_json() if isinstance(agent, AgentSpec) else None,
        "model_dir": str(model.directory),
        "tool_format": model.tool_format,
        "rewards": [asdict(reward) for reward in rewards],
        "info": asdict(info),
        "client": entrance.client,
    }

    def make(index: int, state: Mapping[str, Any]) -> ProcessSpec:
        name = f"node-{index}"
        own = {"name": name, "log_dir": str(log_dir / name), "state": dict(state)}
        return ProcessSpec(name, ENTRY, {**common, **own})

    return make


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Run a rollout node. `node_specs` makes `args`."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for client in ("httpx", "httpx2"):  # a line for each call of a model would bury the rest
        logging.getLogger(client).setLevel(logging.WARNING)
    run_to_the_end(_serve(channel, args))


async def _serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    config = Config.model_validate(args["config"])
    log_dir = Path(args["log_dir"])
    async with AsyncExitStack() as stack:
        engine = engine_client(args)
        stack.push_async_callback(engine.aclose)
        await engine.told(args["state"])
        agent = playable(_agent(config, args["agent"]), config.rollout, log_dir=log_dir)
        if isinstance(agent, AgentPool):
            await stack.enter_async_context(agent)
        if isinstance(agent, CommandAgent):
            agent.keep_output(log_dir)
            stack.push_async_callback(agent.aclose)
        players = await stack.enter_async_context(
            open_players(
                config,
                agent,
                engine,
                renderer=load_renderer(args["model_dir"], args["tool_format"]),
                rewards=[RewardSpec(**reward) for reward in args["rewards"]],
                routes=routes_of(load_plugins_of(config)),
                log_dir=log_dir,
                run_dir=None,
                host=HOST,
                port=0,
            )
        )
        stack.enter_context(short_collections())
        server = NodeServer(
            channel,
            make_runner=lambda stage: players.runner(
                split=stage.split, sampling=stage.sampling, journal=_journal(stage, stack)
            ),
            told=engine.told,
        )
        channel.ready({"gateway": players.gateway.base_url})
        await server.run()


def _journal(stage: Stage, stack: AsyncExitStack) -> Journal | None:
    """The journal of the run, until `stack` ends; None if this node does not see the run directory."""
    if stage.journal is None or not RunDir(stage.journal.parent).config.is_file():
        return None
    journal = Journal(stage.journal)
    journal.start()
    stack.callback(journal.close)
    return journal


def engine_client(args: Mapping[str, JSON]) -> EngineClient:
    cls = load_user_object(args["client"])
    info = {**args["info"], "stop_tokens": tuple(args["info"]["stop_tokens"])}
    client: EngineClient = cls(EngineInfo(**info), name=args["name"])
    return client


def _agent(config: Config, spec: Mapping[str, JSON] | None) -> Any:
    if spec is not None:
        return AgentSpec(**spec)
    assert config.command is not None, "only a command has no spec"
    return command_program(config, config.command).agent
