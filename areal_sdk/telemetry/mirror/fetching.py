"""Copies a run from its mirror to this machine: whole, or not at all."""

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.telemetry.checksums import first_change
from areal_sdk.telemetry.directories import DamagedError, whole_directory
from areal_sdk.telemetry.files import PRIVATE, PRIVATE_DIRECTORY
from areal_sdk.telemetry.mirror.layout import (
    CHECKPOINTS,
    FOLDERS,
    ID_FILE,
    SIGN,
    Whole,
    names_there,
)
from areal_sdk.telemetry.mirror.store import Store
from areal_sdk.telemetry.run_dir import RunDir


def fetch_run(
    store: Store, path: Path, *, choose: Callable[[Collection[str]], Collection[str]]
) -> RunDir:
    """The run at `store`, copied to `path`, which must not exist yet.

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
    with whole_directory(path) as partial:
        partial.chmod(PRIVATE_DIRECTORY)
        chosen = choose(
            names_there(store)
        )  # first, because the books of a later time have all that it needs
        _get_files(store, "", partial)
        _get_file(store, SIGN, partial / ID_FILE)
        for folder in FOLDERS:
            _get_files(store, folder, partial / folder)
        for name in chosen:
            _get_whole(store, name, partial / CHECKPOINTS / name)
    return RunDir.open(path)


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
