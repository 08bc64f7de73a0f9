"""Copies a run from its mirror to this machine: whole, or not at all."""

import os
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from areal_sdk import Run
from areal_sdk.errors import ConfigError, DamagedError
from areal_sdk.records import first_change
from areal_sdk_mirror.layout import CHECKPOINTS, ID_FILE, SIGN, Whole, names_there, step_of
from areal_sdk_mirror.store import PRIVATE, PRIVATE_DIRECTORY, Store, open_store, reached

RUNS = Path("runs")
"""Place of new run directories, as of `areal-sdk train`."""


def fetch_whole(url: str, directory: Path | None) -> Path:
    """The run that is mirrored at `url`, with all its checkpoints: in `directory`, or in ./runs under its name."""
    store = open_store(url)
    path = directory or RUNS / _name_of(store)
    with reached(f"the mirror {store.url!r}"):
        fetch_run(store, path, choose=lambda names: names)
    Run(path).write_report()  # the mirror has that of the run's last end, if any
    return path


def fetch_to_go_on(url: str, *, default: Path) -> Path:
    """The part of the run at `url` that a resumed run needs. The copy is in the `run.dir` of the run, or in `default`,
    under the last part of the address."""
    store = open_store(url)
    with reached(f"the mirror {store.url!r}"):
        settings = tomllib.loads((store.read("config.toml") or b"").decode())
        root = Path(settings.get("run", {}).get("dir", default))
        path = root / _name_of(store)
        try:
            fetch_run(store, path, choose=_to_go_on)
        except OSError as exc:
            raise ConfigError(
                f"{store.url} cannot be fetched to {root} (the run's run.dir): {exc}; choose another directory, then "
                f"resume that: areal-sdk fetch {store.url} --to DIR"
            ) from exc
    return path


def fetch_run(
    store: Store, path: Path, *, choose: Callable[[Collection[str]], Collection[str]]
) -> None:
    """Copy the run at `store` to `path`, which must not exist yet.

    `choose` says which directories of `checkpoints` are copied. Each of their files is compared with its checksum:
    `DamagedError` names the first that differs.
    """
    if path.exists():
        raise ConfigError(
            f"{path} exists: a run that is fetched gets a new directory (run.dir and the last part of its "
            f"address). Go on with it if it is this run, or put it aside"
        )
    if store.read(SIGN) is None or store.read("config.toml") is None:
        raise ConfigError(
            f"no run is mirrored at {store.url} (no {SIGN}): give the run.mirror of a run"
        )
    with _whole_directory(path) as partial:
        # The weights are chosen first, because the files of a later time have all that these weights need.
        chosen = choose(names_there(store))
        _get_files(store, "", partial)
        _get_file(store, SIGN, partial / ID_FILE)
        for folder, size in store.sizes().items():
            if size is None and folder != CHECKPOINTS:
                _get_files(store, folder, partial / folder)
        for name in chosen:
            _get_whole(store, name, partial / CHECKPOINTS / name)


def _to_go_on(names: Collection[str]) -> Collection[str]:
    """The newest checkpoint, what the guard keeps, and weights that were exported."""
    steps = {name: step for name in names if (step := step_of(name)) is not None}
    newest = max(steps, key=lambda name: steps[name], default=None)
    return [name for name in names if name not in steps or name == newest]


def _name_of(store: Store) -> str:
    return store.url.rpartition("/")[2]


@contextmanager
def _whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which reaches the disk and becomes `path` when the block ends."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a fetch that was killed
    partial.mkdir(PRIVATE_DIRECTORY, parents=True)
    try:
        yield partial
        for place in (partial, *partial.rglob("*")):
            _sync(place)
        partial.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _get_files(store: Store, folder: str, target: Path) -> None:
    for name, size in store.sizes(folder).items():
        if size is not None and (folder or name != SIGN):
            target.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            try:
                _get_file(store, f"{folder}/{name}" if folder else name, target / name)
            except FileNotFoundError:  # the oldest episodes of a run that goes on
                (target / name).unlink(missing_ok=True)


def _get_file(store: Store, key: str, target: Path) -> None:
    store.get(key, target)
    target.chmod(PRIVATE)


def _get_whole(store: Store, name: str, target: Path) -> None:
    way_on = f"to go on without it, remove {store.at(f'{CHECKPOINTS}/{name}.json')} and try again"
    try:
        whole = Whole.read(store, name)
    except DamagedError as exc:
        raise DamagedError(f"{exc}; {way_on}") from exc
    if whole is None:
        return  # it was removed meanwhile
    target.mkdir(parents=True)
    for file in whole.files:
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # named below
            store.get(f"{whole.folder}/{file}", place)
    if (how := first_change(target, whole.files)) is not None:
        if store.read(whole.marker) != whole.to_json():
            shutil.rmtree(target)  # its run goes on, and has replaced or removed it meanwhile
            return
        raise DamagedError(f"{store.at(whole.folder)} is damaged: {how}; {way_on}")
