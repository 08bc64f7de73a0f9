"""The devices of a run: the demand that the settings make, and the plan of the package areal-sdk-plan for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from areal_sdk.config import Config
from areal_sdk.config.machine import bfloat16_is_slow, has_gpu
from areal_sdk.engine import ConfiguredEngine
from areal_sdk.fsdp.memory.fitting import Fit
from areal_sdk.loop.plan.parts import engine_class
from areal_sdk.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Devices:
    """The plan in words, and the variables of processes by their names."""

    lines: Sequence[str] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


NO_DEVICES = Devices()
_NARROW = "a GPU has no instructions for bfloat16: local engine and trainer compute in float32"
_MISSING = 'every process takes the first GPU: pip install "areal-sdk[plan]" gives each its own'


def device_plan(
    config: Config,
    plugins: Plugins,
    model: Path | Fit,
    *,
    learns: bool = True,
    memories: Sequence[int] = (),
) -> Devices:
    """The plan for GPUs of these memory sizes, by default this machine's. Empty if a launcher or settings choose."""
    trainer, engine = config.trainer, engine_class(config, plugins)
    if config.cluster.places or ":" in trainer.device or config.policy:
        return NO_DEVICES
    if find_spec("areal_sdk_plan") is None:
        return Devices([_MISSING]) if has_gpu() else NO_DEVICES
    from areal_sdk_plan.devices import Demand, Gpu, find_gpus, plan_devices

    gpus = [Gpu(str(n), size) for n, size in enumerate(memories)] or find_gpus()
    own = config.options.get(f"engine.{config.engine.kind}", {})
    servers = (
        engine.gpus(config.engine, own) if issubclass(engine, ConfiguredEngine) and gpus else {}
    )
    if not gpus or servers is None:
        return NO_DEVICES
    fit = Fit.of(model, trainer, 0) if isinstance(model, Path) else model

    def rank_bytes(room: int) -> int:
        if fit is None:
            return 0
        num_tokens = trainer.tokens_per_microbatch
        needed = fit.needs(num_tokens, replace(fit, room=room).chosen(num_tokens))
        return needed.lasting if own.get("colocated") else needed.total

    ranks = trainer.ranks if learns and trainer.device != "cpu" else 0
    weights = (4 if config.engine.dtype == "float32" else 2) * fit.model.parameters if fit else 0
    turns = bool(own.get("colocated"))
    plan = plan_devices(gpus, Demand(ranks, rank_bytes, servers, weights, turns))
    narrow = [_NARROW] if not memories and bfloat16_is_slow("cuda") else []
    return Devices([*plan.lines(), *narrow], plan.environments)
