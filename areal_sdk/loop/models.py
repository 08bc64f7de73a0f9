"""A model name as commands take it: what `areal_sdk.models` knows, or a run's own weights."""

from pathlib import Path

from areal_sdk.config import RunSection
from areal_sdk.errors import ConfigError
from areal_sdk.models import resolve_model
from areal_sdk.telemetry import RunDir

EXPORTS = ("best", "final", "waiting")
"""The last: of a run that did not get to its end, weights whose evaluation they changed under."""


def find_model(name: str) -> Path:
    """The directory of model `name`; for a run directory its best weights, else its last."""
    path = Path(name).expanduser()
    if not (path / "config.toml").is_file():
        if not path.exists() and _is_among_runs(path):
            raise ConfigError(f"no such run: {path}")
        return resolve_model(name)
    for export in EXPORTS:
        if (path / "checkpoints" / export / "config.json").is_file():
            return path / "checkpoints" / export
    raise ConfigError(
        f"{path} has no exported weights yet (checkpoints/best or /final): "
        f"finish it with: {RunDir(path).how_to_resume()}"
    )


def _is_among_runs(path: Path) -> bool:
    """Whether `path` stands where runs do: `runs/nope` is no id for the hub."""
    default = path.parent == Path(RunSection().dir)
    return default or any(path.parent.glob("*/config.toml"))
