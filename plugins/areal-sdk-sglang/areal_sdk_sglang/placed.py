"""SGLang servers that a launcher places on other machines: what travels there, and what is done with it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.backends.remote import JSON, EngineSection, LocalServer, Recipe
from areal_sdk.errors import ConfigError
from areal_sdk.launcher import Reservation, gpus_of
from areal_sdk_sglang.install import ENVIRONMENT_VARIABLE, why_not
from areal_sdk_sglang.servers import SGLangLauncher, chosen_environment
from areal_sdk_sglang.settings import SGLangSection


def placed_settings(own: SGLangSection, *, host: str) -> SGLangSection:
    """The settings of servers on other machines, which reach this one at `host`."""
    if own.colocated:
        raise ConfigError(
            "engine.sglang.colocated needs engine and trainer on one machine, and cluster.launcher may place them "
            "apart: leave it out"
        )
    given = own.model_fields_set
    if "transport" in given and own.transport == "tensor":
        raise ConfigError(
            'engine.sglang.transport = "tensor" is shared memory of one machine, and cluster.launcher may place '
            'servers on others: use "disk" (files, which are sent where they are not seen) or "distributed"'
        )
    update: dict[str, object] = {}
    if "transport" not in given:
        update["transport"] = "disk"
    if "group_host" not in given:
        update["group_host"] = host
    return own.model_copy(update=update)


def recipe_of(model: Path, section: EngineSection, own: SGLangSection) -> Recipe:
    """The recipe by which another machine starts a server."""
    cpus_only = section.device == "cpu"
    tp = own.tp_size
    return Recipe(
        model,
        make="areal_sdk_sglang.placed:make_server",
        args={
            "engine": section.model_dump(mode="json", exclude_unset=True),
            "settings": own.model_dump(mode="json", exclude_unset=True, exclude={"api_key"}),
            "environment": os.environ.get(ENVIRONMENT_VARIABLE, ""),
        },
        reserves=Reservation(
            section.threads, tp if tp > 1 and not cpus_only else gpus_of(section.device)
        ),
        threads=section.threads,
        no_room=(
            f"a server with engine.sglang.tp_size = {tp} needs one machine with {tp} free GPUs: no server spans machines"
            if tp > 1
            else ""
        ),
        too_many="lower engine.sglang.servers, or add machines",
        other_version="run areal-sdk engine install sglang --version VERSION there, with the same version as elsewhere",
    )


def make_server(args: Mapping[str, JSON], *, model: Path, host: str, port: int) -> LocalServer:
    """Make the server that the settings ask for, on its own machine and with that machine's environment."""
    travelled: Mapping[str, Any] = args
    section = EngineSection.model_validate(travelled["engine"])
    own = SGLangSection.read(travelled["settings"])
    is_named = own.environment is not None or ENVIRONMENT_VARIABLE in os.environ
    if (
        not is_named and travelled["environment"]
    ):  # the main process's variable: better than a guess
        own = own.model_copy(update={"environment": Path(travelled["environment"])})
    environment = chosen_environment(section, own)
    if why := why_not(environment.version):
        raise ConfigError(f"SGLang {environment.version}: {why}: areal-sdk engine install sglang")
    launcher = SGLangLauncher(model, environment, Path(), engine=section, settings=own)
    return LocalServer(launcher.command_at(host, port), {"SGLang": environment.version})
