"""Steps of a run that are written, mirrored and fetched again."""

from pathlib import Path

from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import forget_old, whole_directory
from areal_sdk_mirror.copying import Copier
from areal_sdk_mirror.fetching import fetch_run
from areal_sdk_mirror.store import Store


def write_step(run: RunDir, step: int, *, size: int = 100, keep: int = 2) -> Path:
    path = run.checkpoints / f"step-{step:06d}"
    with whole_directory(path) as partial:
        (partial / "model.0").write_bytes(bytes([step]) * size)
        (partial / "state.json").write_text(f'{{"step": {step}}}')
    forget_old(path, keep=keep)
    return path


def copier_of(run: RunDir, store: Store, *, keep: int = 2) -> Copier:
    copier = Copier(run.path, store, keep=keep)
    copier.take()
    return copier


def fetched(store: Store, path: Path) -> RunDir:
    fetch_run(store, path, choose=lambda names: names)
    return RunDir.open(path)


def contents(run: RunDir) -> dict[str, bytes]:
    return {
        path.relative_to(run.path).as_posix(): path.read_bytes()
        for path in run.path.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
