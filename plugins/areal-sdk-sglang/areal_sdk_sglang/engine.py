"""The engine `sglang`: a `RemoteEngine` whose servers run SGLang."""

from collections.abc import Mapping
from typing import Any

from areal_sdk.backends.remote import (
    SENDER,
    EngineSection,
    LocalLauncher,
    PlacedServers,
    RemoteEngine,
    ServerStarter,
)
from areal_sdk.engine import ConfiguredEngine, EngineSettings
from areal_sdk.errors import ConfigError
from areal_sdk_sglang.client import SGLangClient
from areal_sdk_sglang.placed import placed_settings, recipe_of
from areal_sdk_sglang.servers import SGLangLauncher, chosen_environment, named_gpus
from areal_sdk_sglang.settings import SGLangSection, server_addresses


class SGLangEngine(RemoteEngine, ConfiguredEngine):
    """Samples from SGLang servers."""

    client = SGLangClient
    table = SGLangSection
    accepts = ("all", "changed")

    @classmethod
    def gpus(cls, section: EngineSection, options: Mapping[str, Any]) -> Mapping[str, int] | None:
        own = SGLangSection.read(options)
        if server_addresses(section.name) or chosen_environment(section, own).cpu:
            return {}
        first, width = named_gpus(own)
        sends = own.transport == "distributed" and own.group_backend == "nccl"
        servers = {f"sglang-{n}": width for n in range(own.servers)} | (
            {SENDER: 0} if sends else {}
        )
        return servers if first is None else None

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "SGLangEngine":
        """The engine of `engine.name = "sglang"` or `"http://host:port,http://..."`."""
        section = settings.section
        own = SGLangSection.read(settings.options)
        if own.colocated and own.transport == "distributed" and own.group_backend == "nccl":
            raise ConfigError(
                "engine.sglang.colocated: nccl has no group of two processes on one GPU; use "
                'engine.sglang.transport = "tensor"'
            )
        addresses = server_addresses(section.name)
        launcher: ServerStarter | None = None
        if addresses:
            _refuse_what_running_servers_ignore(section, settings.options)
        elif settings.is_placed:
            place = settings.launcher or LocalLauncher(log_dir=settings.log_dir)
            own = placed_settings(own, host=place.host)
            recipe = recipe_of(settings.model_dir, section, own)
            launcher = PlacedServers(place, recipe, count=own.servers)
        else:
            launcher = SGLangLauncher(
                settings.model_dir,
                chosen_environment(section, own),
                settings.log_dir,
                engine=section,
                settings=own,
                environments=settings.environments,
            )
        return cls(
            settings.model_dir,
            addresses,
            log_dir=settings.log_dir,
            launcher=launcher,
            engine=section,
            settings=own,
            sender_env=settings.environments.get(SENDER),
        )


def _refuse_what_running_servers_ignore(
    section: EngineSection, settings: Mapping[str, Any]
) -> None:
    """Servers named by address were started by somebody, with settings of their own."""
    ours = {"dtype", "device", "max_slots", "threads"} & section.model_fields_set
    started = {"servers", "environment", "tp_size", "kv_tokens", "memory_fraction", "seeded"}
    theirs = (started | {"colocated", "arguments"}) & set(settings)
    if ours or theirs:
        names = [f"engine.{name}" for name in ours] + [f"engine.sglang.{name}" for name in theirs]
        raise ConfigError(
            f"{', '.join(sorted(names))} cannot change servers that already run ({section.name}): "
            "remove it, or start them with it: areal-sdk engine start"
        )
