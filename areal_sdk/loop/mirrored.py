"""The mirror of a run (`run.mirror`): it is kept while the run goes on, and fetched to resume the run elsewhere."""

import asyncio
import secrets
import threading
import tomllib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.config import RunSection
from areal_sdk.errors import ConfigError
from areal_sdk.loop.learning.state import PREFIX, latest_checkpoint, step_of
from areal_sdk.loop.shutdown import StoppedAtOnce
from areal_sdk.process.threads import in_thread
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import CheckpointError, DamagedError
from areal_sdk.telemetry.files import read_json, to_json, write_atomically
from areal_sdk.telemetry.mirror.copying import Copier
from areal_sdk.telemetry.mirror.fetching import fetch_run
from areal_sdk.telemetry.mirror.keeper import MirrorKeeper
from areal_sdk.telemetry.mirror.layout import ID_FILE, Sign, is_mirror, names_there, read_sign
from areal_sdk.telemetry.mirror.store import FolderStore, Store, open_store


class Mirroring:
    """The mirroring of one run; does nothing if no mirror is set."""

    def __init__(self, run_dir: RunDir, section: RunSection) -> None:
        self._run_dir = run_dir
        self._section = section
        self._keeper: MirrorKeeper | None = None
        self.goes_on = False
        """Whether the run begins again at once, so that nobody waits for the mirror."""
        self._is_given_up = False

    def begin(self) -> None:
        """Check that the mirror is this run's, and keep it from now on. The run directory must be locked."""
        self.goes_on = False
        url = self._section.mirror
        if url is None or self._keeper is not None:
            return
        store = open_store(url)
        copier = Copier(self._run_dir, store, keep=self._section.keep_checkpoints)

        def take() -> None:
            _check_is_own(self._run_dir, store)
            copier.take()

        _within(CHECK_WITHIN_S, take, store)
        self._keeper = MirrorKeeper(
            copier, url=store.url, how_to_resume=self._run_dir.how_to_resume()
        )
        self._keeper.begin()

    async def catch_up(self) -> None:
        """Copy everything that is written so far, so that little is left for `finish`."""
        if (keeper := self._keeper) is not None:
            within_s = self._section.stop_grace_s
            try:
                is_whole = await in_thread(
                    lambda: keeper.catch_up(within_s=within_s), name="mirror catches up"
                )
                self._is_given_up = not is_whole  # `finish` does not wait as long again
            except asyncio.CancelledError:
                self.give_up()
                raise

    def give_up(self) -> None:
        """Give the mirror up, so that nobody waits for it any more."""
        self._is_given_up = True

    def finish(self) -> None:
        """Bring the mirror up to date, and say what is missing; without a wait if it was given up."""
        if self._keeper is not None:
            self._keeper.finish(within_s=0.0 if self._is_given_up else self._section.stop_grace_s)


@contextmanager
def mirrored_at_end(mirroring: Mirroring) -> Iterator[None]:
    """Bring the mirror up to date after the block, in which it begins."""
    try:
        yield
    except StoppedAtOnce:
        mirroring.give_up()
        raise
    finally:
        if not mirroring.goes_on:
            mirroring.finish()


def bring_up_to_date(run_dir: RunDir, section: RunSection) -> None:
    """Copy the files that the mirror of a finished run lacks."""
    if section.mirror is not None:
        mirroring = Mirroring(run_dir, section)
        with run_dir.in_use(), mirrored_at_end(mirroring):
            mirroring.begin()


def open_run(run: str | Path) -> RunDir:
    """The run directory `run`. If `run` is a mirror, the part that a resumed run needs is fetched first.

    The copy is in the `run.dir` of the run, under the last part of the mirror's address.
    """
    if not is_mirror(run):
        return RunDir.open(Path(run))
    store = open_store(str(run))
    with _reached(f"the mirror {store.url!r}"):
        settings = tomllib.loads((store.read("config.toml") or b"").decode())
    root = Path(settings.get("run", {}).get("dir", RunSection().dir))
    try:
        with _reached(f"the mirror {store.url!r}"):
            return fetch_run(store, root / _name_of(store), choose=_to_go_on)
    except CheckpointError as exc:
        if isinstance(exc, DamagedError):
            raise
        raise ConfigError(
            f"{store.url} cannot be fetched to {root} (the run's run.dir): {exc.__cause__ or exc}; choose another "
            f"directory, then resume that: areal-sdk fetch {store.url} --to DIR"
        ) from exc


def fetch_whole(url: str, directory: Path | None) -> RunDir:
    """The run that is mirrored at `url`, with all its checkpoints: in `directory`, or in ./runs under its name."""
    store = open_store(url)
    path = directory or RunSection().dir / _name_of(store)
    with _reached(f"the mirror {store.url!r}"):
        return fetch_run(store, path, choose=lambda names: names)


def _name_of(store: Store) -> str:
    return store.url.rpartition("/")[2]


def _to_go_on(names: Collection[str]) -> Collection[str]:
    """The newest checkpoint, what the guard keeps, and weights that were exported."""
    steps = [name for name in names if name.startswith(PREFIX)]
    newest = max(steps, key=lambda name: step_of(Path(name)) or 0, default=None)
    return [name for name in names if name not in steps or name == newest]


CHECK_WITHIN_S = 60.0
"""Deadline of the first access to a mirror, in seconds."""
_CURE = "see to the address, the rights there and the network"


def _within(seconds: float, act: Callable[[], None], store: Store) -> None:
    """Call `act`, whose store may hang; ConfigError if it fails."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            act()
        except BaseException as exc:  # noqa: BLE001 - raised below
            ended.set_exception(exc)
        else:
            ended.set_result(None)

    threading.Thread(target=run, name="reach mirror", daemon=True).start()
    if not wait([ended], timeout=seconds).done:
        raise ConfigError(
            f"run.mirror = {store.url!r} does not answer within {seconds:g} s: {_CURE}"
        )
    with _reached(f"run.mirror = {store.url!r}"):
        ended.result()


@contextmanager
def _reached(what: str) -> Iterator[None]:
    """Raise ConfigError if the store of a mirror fails in the block, because every store has errors of its own."""
    try:
        yield
    except (ConfigError, CheckpointError):
        raise
    except Exception as exc:
        raise ConfigError(
            f"{what} cannot be read or written ({type(exc).__name__}: {exc}): {_CURE}"
        ) from exc


def _check_is_own(run_dir: RunDir, store: Store) -> None:
    """Give the run an id, and refuse a mirror of another run, or one that is ahead of this directory."""
    _check_place(run_dir, store)
    path = run_dir.path / ID_FILE
    if (known := read_json(path)) is None:
        known = {"id": secrets.token_hex(8)}
        write_atomically(path, to_json(known))
    own, there = Sign.of(known), read_sign(store)
    if there is None:
        if names := sorted(store.sizes()):
            raise ConfigError(
                f"run.mirror = {store.url!r} is no mirror and holds {', '.join(names[:3])}: a mirror removes what is "
                "not its own, so give it a place that is empty or does not exist"
            )
        return
    whole = names_there(store)
    steps = [step_of(Path(name)) for name in whole if name.startswith(PREFIX)]
    if there.id != own.id:
        if not whole:
            return  # of a run that never wrote weights
        raise ConfigError(
            f"run.mirror = {store.url!r} holds another run: give this run a mirror of its own, or go on with "
            f"that one: --resume {store.url}"
        )
    latest = latest_checkpoint(run_dir.checkpoints)
    here = -1 if latest is None else step_of(latest)
    newest = max((step for step in steps if step is not None), default=-1)
    if newest > (here or 0) or not own.may_follow(there):
        raise ConfigError(
            f"the mirror {store.url} is ahead of {run_dir.path} (step {newest} against "
            f"{'none' if latest is None else f'step {here}'}), or was written from elsewhere since: the run went on "
            f"there. Put this directory aside, and go on with the mirror: --resume {store.url}"
        )


def _check_place(run_dir: RunDir, store: Store) -> None:
    if not isinstance(store, FolderStore):
        return
    mirror, own = store.path.resolve(), run_dir.path.resolve()
    if mirror.is_relative_to(own) or own.is_relative_to(mirror):
        raise ConfigError(
            f"run.mirror = {store.url!r} and the run directory {own} lie in one another: give the mirror a place of its own"
        )
