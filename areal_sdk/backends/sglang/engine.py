"""The engine `sglang`: a `RemoteEngine` whose servers run SGLang."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import ValidationError

from areal_sdk.backends.remote.engine import RemoteEngine
from areal_sdk.backends.remote.options import RemoteOptions
from areal_sdk.backends.remote.processes import ServerLauncher
from areal_sdk.backends.remote.verify import CanaryScorer
from areal_sdk.backends.sglang.client import SGLangClient
from areal_sdk.backends.sglang.install import SGLangEnvironment, find_environment
from areal_sdk.backends.sglang.servers import ServerOptions, SGLangLauncher
from areal_sdk.backends.sglang.settings import SGLangSection, server_addresses
from areal_sdk.config import EngineSection, explain
from areal_sdk.engine import ConfiguredEngine, EngineSettings
from areal_sdk.errors import ConfigError


class SGLangEngine(RemoteEngine, ConfiguredEngine):
    """Samples from SGLang servers."""

    client = SGLangClient

    def __init__(
        self,
        model: Path,
        addresses: Sequence[str] = (),
        *,
        log_dir: Path,
        launcher: ServerLauncher | None = None,
        version: int = 0,
        max_context: int | None = None,
        scorer: CanaryScorer | None = None,
        api_key: str | None = None,
        options: RemoteOptions | None = None,
    ) -> None:
        super().__init__(
            model,
            addresses,
            log_dir=log_dir,
            launcher=launcher,
            version=version,
            max_context=max_context,
            scorer=scorer,
            options=options,
        )
        self._api_key = api_key

    def make_client(self, address: str, session: aiohttp.ClientSession) -> SGLangClient:
        return SGLangClient(
            address, session, deadlines=self.options.deadlines, api_key=self._api_key
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> "SGLangEngine":
        """The engine of `engine.name = "sglang"` or `"http://host:port,http://..."`."""
        section, options = settings.section, settings.options
        try:
            own = SGLangSection.model_validate(dict(options))
        except ValidationError as exc:
            raise ConfigError(f"engine.sglang: {explain(exc, SGLangSection)}") from None
        if own.colocated and own.transport == "distributed" and own.group_backend == "nccl":
            raise ConfigError(
                "engine.sglang.colocated: nccl has no group of two processes on one GPU; use "
                'engine.sglang.transport = "tensor"'
            )
        addresses = server_addresses(section.name)
        launcher = None
        if addresses:
            _refuse_what_running_servers_ignore(section, options)
        else:
            launcher = SGLangLauncher(
                ServerOptions(
                    settings.model_dir,
                    dtype=section.dtype,
                    max_context=section.max_context,
                    max_requests=section.max_slots
                    if "max_slots" in section.model_fields_set
                    else None,
                    kv_tokens=own.kv_tokens,
                    memory_fraction=own.memory_fraction,
                    tp_size=own.tp_size,
                    seeded=own.seeded,
                    colocated=own.colocated,
                    threads=section.threads,
                    extra=own.arguments,
                ),
                _environment(section, own),
                settings.log_dir,
                count=own.servers,
            )
        return cls(
            settings.model_dir,
            addresses,
            log_dir=settings.log_dir,
            launcher=launcher,
            max_context=section.max_context,
            api_key=own.api_key,
            options=RemoteOptions(
                transport=own.transport,
                interrupt="in_place" if section.kv_on_update == "keep" else own.interrupt,
                no_server_timeout_s=own.request_wait_s,
                backend=own.group_backend,
                host=own.group_host,
                colocated=own.colocated,
                router=own.router,
            ),
        )


def _environment(section: EngineSection, own: SGLangSection) -> SGLangEnvironment:
    environment = find_environment(own.environment)
    installed = "cpu" if environment.cpu else "cuda"
    if section.device not in ("auto", installed):
        raise ConfigError(
            f"engine.device = {section.device!r}, but the SGLang environment was made for "
            f"{installed}: areal-sdk engine install sglang{'' if environment.cpu else ' --cpu'}"
        )
    if own.seeded and environment.cpu:
        raise ConfigError(
            "engine.sglang.seeded: SGLang's deterministic inference has no attention for a CPU; "
            'seeds are honoured there by engine.name = "local"'
        )
    return environment


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
