"""From `[engine]` to an engine that is not started yet."""

from pathlib import Path

from areal_sdk.backends.local import LocalEngine
from areal_sdk.backends.sglang.settings import engine_from_settings
from areal_sdk.config import Config, EngineSection
from areal_sdk.engine import InferenceEngine
from areal_sdk.errors import ConfigError
from areal_sdk.plugins import Plugins


def make_engine(
    config: Config, model_dir: Path, *, plugins: Plugins, log_dir: Path
) -> InferenceEngine:
    """The engine that `engine.name` names: ours, SGLang's servers, or a plugin's."""
    section = config.engine
    if section.name == "local":
        return LocalEngine(
            model_dir,
            log_dir=log_dir,
            dtype=section.dtype,
            device=section.device,
            max_slots=section.max_slots,
            max_context=section.max_context,
            kv_on_update=section.kv_on_update,
            deterministic=config.run.deterministic,
            threads=section.threads,
        )
    if config.run.deterministic:
        raise ConfigError(
            f"run.deterministic needs the local engine, not {section.name!r}: its batch shapes are "
            "ours to fix"
        )
    if is_sglang(section.name):
        settings = config.options.get("engine.sglang", {})
        return engine_from_settings(section, settings, model_dir=model_dir, log_dir=log_dir)
    options = {"model_dir": model_dir, "log_dir": log_dir}
    options |= config.options.get(f"engine.{section.name}", {})
    return plugins.configure("engine", section.name, options)


def check_engine(config: Config, plugins: Plugins) -> None:
    """ConfigError for an engine that nobody brings."""
    name = config.engine.name
    if name == "local" or is_sglang(name):
        return
    plugins.engines.reference(name)
    ignored = config.engine.model_fields_set - {"name"}
    stored = {field for field in ignored if getattr(config.engine, field) == _default(field)}
    if ignored - stored:
        keys = ", ".join(f"engine.{field}" for field in sorted(ignored - stored))
        raise ConfigError(
            f"{keys} would be ignored: the engine {name!r} is a plugin's, and has options of its "
            f"own, [engine.{name}]"
        )


def _default(field: str) -> object:
    return EngineSection.model_fields[field].default


def is_sglang(name: str) -> bool:
    """Whether `engine.name` means SGLang: by name, or by the addresses of its servers."""
    return name == "sglang" or name.startswith(("http://", "https://"))
