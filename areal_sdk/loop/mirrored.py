"""The mirror of a run (`run.mirror`), as the run sees it. The package areal-sdk-mirror copies what `list_weights` and
`list_files` of the run directory name; this module says when."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from areal_sdk.config import RunSection
from areal_sdk.errors import ConfigError
from areal_sdk.errors.packages import how_to_install
from areal_sdk.loop.shutdown import StoppedAtOnce
from areal_sdk.process.threads import in_thread
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import is_mirror

if TYPE_CHECKING:
    from areal_sdk_mirror.mirror import Mirror


class Mirroring:
    """The mirroring of one run; does nothing if no mirror is set."""

    def __init__(self, run_dir: RunDir, section: RunSection) -> None:
        self._run_dir = run_dir
        self._section = section
        self._mirror: Mirror | None = None
        self.goes_on = False
        """Whether the run begins again at once, so that nobody waits for the mirror."""
        self._is_given_up = False

    def begin(self) -> None:
        """Check that the mirror is this run's, and keep it up to date from now on. The run directory must be locked."""
        self.goes_on = False
        url = self._section.mirror
        if url is None or self._mirror is not None:
            return
        check_package()
        from areal_sdk_mirror.mirror import Mirror

        keep, how = self._section.keep_checkpoints, self._run_dir.how_to_resume()
        mirror = Mirror(self._run_dir.path, url, keep=keep, how_to_resume=how)
        mirror.begin()
        self._mirror = mirror

    async def catch_up(self) -> None:
        """Copy everything that is written so far, so that little is left for `finish`."""
        if (mirror := self._mirror) is not None:
            within_s = self._section.stop_grace_s
            try:
                is_whole = await in_thread(
                    lambda: mirror.catch_up(within_s=within_s), name="mirror catches up"
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
        if self._mirror is not None:
            self._mirror.finish(within_s=0.0 if self._is_given_up else self._section.stop_grace_s)


@contextmanager
def mirrored_at_end(mirroring: Mirroring) -> Iterator[None]:
    """Bring the mirror up to date after the block. Call `mirroring.begin` inside the block."""
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
    check_package()
    from areal_sdk_mirror.fetching import fetch_to_go_on

    return RunDir.open(fetch_to_go_on(str(run), default=RunSection().dir))


def check_package() -> None:
    """Raise ConfigError if the package that copies is not installed. The error names the line to install."""
    if cure := how_to_install("setting", "run.mirror"):
        raise ConfigError(cure)
