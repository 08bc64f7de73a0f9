"""Toy servers that a launcher places: what their machine does, and an engine over them."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from areal_sdk.backends.remote.engine import RemoteEngine
from areal_sdk.backends.remote.options import RemoteSection, ServerLimits
from areal_sdk.backends.remote.starting.placement import PlacedServers, Recipe
from areal_sdk.backends.remote.starting.processes import ServerCommand
from areal_sdk.backends.remote.starting.server_process import LocalServer
from areal_sdk.backends.remote.supervisor import SupervisionOptions
from areal_sdk.errors import ConfigError
from areal_sdk.launcher import Launcher
from areal_sdk.process import JSON, Reservation
from tests.backends.remote.toy_vllm import plugin

LIMITS = ServerLimits(supervision=SupervisionOptions(check_every_s=0.5))


def make_server(args: Mapping[str, JSON], *, model: Path, host: str, port: int) -> LocalServer:
    """Each start of a server takes the next of the `versions`, if there are any."""
    version = "1"
    if args.get("versions"):
        names = sorted(Path(str(args["versions"])).iterdir())
        if not names:
            raise ConfigError("no toy is installed: install one")
        version = names[0].read_text()
        names[0].unlink()
    arguments = [sys.executable, str(plugin.SERVER), str(model), str(port), host]
    return LocalServer(ServerCommand(arguments), {"toy": version})


def placed_engine(
    launcher: Launcher,
    model: Path,
    log_dir: Path,
    *,
    count: int = 1,
    versions: Path | None = None,
    gpus: int = 0,
) -> plugin.ToyEngine:
    """An engine whose servers `launcher` places; `versions` are files with what machines have installed."""
    recipe = Recipe(
        model,
        make=f"{__file__}::make_server",
        args={"versions": str(versions or "")},
        reserves=Reservation(gpus=gpus),
        no_room="a toy needs all of its GPUs on one machine",
        too_many="use fewer toys",
        other_version="install one toy everywhere",
    )
    engine = plugin.ToyEngine(model_dir=model, log_dir=log_dir)
    RemoteEngine.__init__(
        engine,
        model,
        log_dir=log_dir,
        launcher=PlacedServers(launcher, recipe, count=count),
        settings=RemoteSection(interrupt="retract"),
        limits=replace(LIMITS),
    )
    return engine
