"""The mirror of one run: checked when the run begins, kept by a thread, brought up to date at its end."""

import json
import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from pathlib import Path

from areal_sdk.errors import ConfigError
from areal_sdk.records import list_weights
from areal_sdk_mirror.copying import Copier
from areal_sdk_mirror.keeper import MirrorKeeper
from areal_sdk_mirror.layout import ID_FILE, Sign, names_there, read_sign, step_of
from areal_sdk_mirror.store import CURE, FolderStore, Store, open_store, reached

CHECK_WITHIN_S = 60.0
"""Deadline of the first access to a mirror, in seconds."""


class Mirror:
    """Keeps the copy of the run directory `run` at `url` after `begin`, which its process must have locked."""

    def __init__(self, run: Path, url: str, *, keep: int, how_to_resume: str) -> None:
        """`keep` is the number of latest checkpoints that stay at the mirror. `how_to_resume` is told if parts are
        missing at the end."""
        self._run = run
        self._store = open_store(url)
        self._copier = Copier(run, self._store, keep=keep)
        self._keeper = MirrorKeeper(self._copier, url=self._store.url, how_to_resume=how_to_resume)

    def begin(self) -> None:
        """Take the mirror over; ConfigError if it is not this run's, or cannot be written."""

        def take() -> None:
            _check_is_own(self._run, self._store)
            self._copier.take()

        _within(CHECK_WITHIN_S, take, self._store)
        self._keeper.begin()

    def catch_up(self, *, within_s: float) -> bool:
        """Wait until the mirror has everything that is written so far. Returns False if that is impossible in time."""
        return self._keeper.catch_up(within_s=within_s)

    def finish(self, *, within_s: float) -> None:
        """Catch up, and end; say what is missing, if anything."""
        self._keeper.finish(within_s=within_s)


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
            f"run.mirror = {store.url!r} does not answer within {seconds:g} s: {CURE}"
        )
    with reached(f"run.mirror = {store.url!r}"):
        ended.result()


def _check_is_own(run: Path, store: Store) -> None:
    """Give the run an id, and refuse a mirror of another run, or one that is ahead of this directory."""
    _check_place(run, store)
    here = FolderStore(run)
    if (known := here.read(ID_FILE)) is None:
        known = json.dumps({"id": secrets.token_hex(8)}).encode()
        here.write(ID_FILE, known)
    own, there = Sign.of(json.loads(known)), read_sign(store)
    if there is None:
        if names := sorted(store.sizes()):
            raise ConfigError(
                f"run.mirror = {store.url!r} is no mirror and holds {', '.join(names[:3])}: a mirror removes what is "
                "not its own, so give it a place that is empty or does not exist"
            )
        return
    whole = names_there(store)
    if there.id != own.id:
        if not whole:
            return  # of a run that never wrote weights
        raise ConfigError(
            f"run.mirror = {store.url!r} holds another run: give this run a mirror of its own, or go on with "
            f"that one: --resume {store.url}"
        )
    latest = _latest(part.path.name for part in list_weights(run))
    if (_latest(whole) or 0) > (latest or 0) or not own.may_follow(there):
        raise ConfigError(
            f"the mirror {store.url} is ahead of {run} (step {_latest(whole) or -1} against "
            f"{'none' if latest is None else f'step {latest}'}), or was written from elsewhere since: the run went on "
            f"there. Put this directory aside, and go on with the mirror: --resume {store.url}"
        )


def _latest(names: Iterable[str]) -> int | None:
    """The step of the newest checkpoint; None if there is none."""
    return max((step for name in names if (step := step_of(name)) is not None), default=None)


def _check_place(run: Path, store: Store) -> None:
    if not isinstance(store, FolderStore):
        return
    mirror, own = store.path.resolve(), run.resolve()
    if mirror.is_relative_to(own) or own.is_relative_to(mirror):
        raise ConfigError(
            f"run.mirror = {store.url!r} and the run directory {own} lie in one another: give the mirror a place of its own"
        )
