"""The entry of a gateway process of `serve`, and the main process's way to open all of them.

The main process has the engine, the records and the trainer, and serves no HTTP.
"""

import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, Quota
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway.accounts.accounts import User
from areal_sdk.gateway.processes.membership import Membership
from areal_sdk.gateway.processes.shard import Shard
from areal_sdk.gateway.server import check_host, reserve_port, url_of
from areal_sdk.gateway.sessions.external import SPLIT, ExternalSession
from areal_sdk.loop.plan.models import FoundModel, load_renderer
from areal_sdk.loop.plan.parts import load_plugins_of
from areal_sdk.loop.services.gateway import (
    callers_sampling,
    make_gateway,
    read_users,
    routes_of,
)
from areal_sdk.loop.services.node import engine_client
from areal_sdk.loop.shutdown import run_to_the_end
from areal_sdk.process import JSON, Channel, ProcessSpec
from areal_sdk.process.frames import Buffer
from areal_sdk.process.memory import short_collections
from areal_sdk.rollout.callers import to_episode
from areal_sdk.rollout.gateways.pool import GatewayPool, kept_running
from areal_sdk.rollout.gateways.server import GatewayServer, SharedEngine
from areal_sdk.rollout.nodes.episode_wire import pack_episode
from areal_sdk.telemetry.episode_log import prepare

ENTRY = "areal_sdk.loop.services.gateway_process:main"


@asynccontextmanager
async def open_gateways(
    config: Config,
    engine: InferenceEngine,
    *,
    model: FoundModel,
    log_dir: Path,
    run_dir: Path | None,
    say: Callable[[str], None],
) -> AsyncIterator[GatewayPool]:
    """`serve.processes` gateway processes at the address of `[gateway]`, which sample from `engine`."""
    gateway, size = config.gateway, config.serve.processes
    check_host(gateway.host, has_given_key=gateway.admin_key is not None)
    admin_key = gateway.admin_key or f"sk-admin-{secrets.token_urlsafe(24)}"
    users = read_users(config)
    secret = secrets.token_bytes(32)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-sdk-"))
        port = stack.enter_context(reserve_port(gateway.host, gateway.port)).getsockname()[1]
        usage = stack.enter_context(closing(_membership(0, size, directory, secret).open_usage()))
        pool: GatewayPool

        async def tell(state: Mapping[str, Any]) -> None:
            await pool.tell(state)

        entrance = await engine.open_entrance(tell, host="127.0.0.1")
        common: dict[str, JSON] = {
            "config": config.model_dump(mode="json"),
            "port": port,
            "run_dir": None if run_dir is None else str(run_dir),
            "admin_key": admin_key,
            "users": [asdict(user) | {"quota": user.quota.model_dump()} for user in users],
            "directory": directory,
            "secret": secret.hex(),
            "size": size,
            "model_dir": str(model.directory),
            "tool_format": model.tool_format,
            "info": asdict(engine.info),
            "client": entrance.client,
        }

        def make_spec(shard: int, state: Mapping[str, Any]) -> ProcessSpec:
            name = f"gateway-{shard}"
            own = {"name": name, "shard": shard, "state": dict(state), "version": engine.version}
            return ProcessSpec(name, ENTRY, {**common, **own})

        pool = GatewayPool(
            make_spec,
            size=size,
            engine=engine,
            base_url=url_of(gateway.host, port),
            admin_key=admin_key,
            log_dir=log_dir,
            forget=usage.forget,
            say=say,
        )
        yield await stack.enter_async_context(kept_running(pool, entrance.state))


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """Run a gateway process. `open_gateways` makes `args`."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    run_to_the_end(_serve(channel, args))


async def _serve(channel: Channel, args: Mapping[str, JSON]) -> None:
    config = Config.model_validate(args["config"])
    gateway_section = config.gateway.model_copy(update={"admin_key": args["admin_key"]})
    config = config.model_copy(update={"gateway": gateway_section})
    users = [User(u["name"], u["api_key"], Quota(**u["quota"])) for u in args["users"]]
    async with AsyncExitStack() as stack:
        engine = SharedEngine(engine_client(args))
        stack.push_async_callback(engine.aclose)
        engine.hear_of(args["version"])
        await engine.client.told(args["state"])
        gateway = make_gateway(
            config,
            engine,
            renderer=load_renderer(args["model_dir"], args["tool_format"]),
            sampling=callers_sampling(config),
            routes=routes_of(load_plugins_of(config)),
            run_dir=None if args["run_dir"] is None else Path(args["run_dir"]),
            users=users,
            membership=_membership(
                args["shard"],
                args["size"],
                args["directory"],
                bytes.fromhex(args["secret"]),
            ),
        )
        stack.push_async_callback(gateway.aclose)
        server = GatewayServer(
            channel, engine, pack=_pack_episode if config.serve.learn else _pack_record
        )
        engine.ask = server.ask
        if config.serve.keeps_sessions:
            gateway.external.observe(server)
        await gateway.start(host=config.gateway.host, port=args["port"])
        stack.enter_context(short_collections())
        channel.ready()
        await server.run(gateway)


def _membership(shard: int, size: int, directory: str, secret: bytes) -> Membership:
    return Membership(Shard(shard, size), Path(directory), secret)


def _pack_episode(live: ExternalSession) -> Sequence[Buffer]:
    return pack_episode(to_episode(live))


def _pack_record(live: ExternalSession) -> Sequence[Buffer]:
    """The record of a session and its line in the index; nothing for a session without turns."""
    if not live.session.turns:
        return ()
    record = prepare(to_episode(live), split=SPLIT)
    return record.record, record.index
