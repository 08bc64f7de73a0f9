"""Keeps a mirror up to date in a thread of its own, which nobody waits for until the run ends."""

import logging
import shlex
import threading
import time
from contextlib import suppress

from areal_sdk_mirror.copying import Copier
from areal_sdk_mirror.layout import TakenOverError

logger = logging.getLogger(__name__)

COPY_EVERY_S = 10.0
"""Seconds between two copies of growing files: metrics, logs, episodes."""
LOOK_EVERY_S = 0.5
"""Seconds within which a new checkpoint is noticed."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
"""Pauses before a mirror that failed is tried again."""
SAY_AFTER_S = 1.0
"""Seconds that a run waits for its mirror before it says so."""
NUM_NAMED = 5
"""Maximum number of missing parts that are named."""
FAILING_WITHIN_S = 60.0
"""Seconds that a run, at its end, waits for a mirror that fails."""


class MirrorKeeper:
    """Keeps the mirror of a run up to date after `begin`. A mirror that fails is tried again after pauses, and the
    user is told once."""

    def __init__(self, copier: Copier, *, url: str, how_to_resume: str) -> None:
        self._copier = copier
        self._url = url
        self._how_to_resume = how_to_resume
        self._wake = threading.Event()
        self._is_whole = threading.Event()
        """Set once the mirror has everything, growing files included, or once this was given up."""
        self._wants_all = False
        self._is_ending = False
        self._is_taken = False
        self._failing_since: float | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        assert self._thread is None
        # A daemon: a store that hangs does not hold up the exit of the interpreter.
        self._thread = threading.Thread(target=self._keep, name="mirror", daemon=True)
        self._thread.start()

    def catch_up(self, *, within_s: float) -> bool:
        """Wait until the mirror has everything. Returns False if that is impossible in time."""
        if self._is_taken:
            return True
        self._is_whole.clear()
        self._wants_all = True
        self._wake.set()
        if not self._is_whole.wait(min(SAY_AFTER_S, within_s)) and within_s > SAY_AFTER_S:
            logger.warning(
                "waits for the mirror %s (up to %g s: run.stop_grace_s; Ctrl-C: at once)",
                self._url,
                within_s,
            )
            self._is_whole.wait(within_s - SAY_AFTER_S)
        return self._is_whole.is_set()

    def finish(self, *, within_s: float) -> None:
        """Catch up, and end; say what is missing, if anything. Ctrl-C ends the wait. Idempotent."""
        if self._is_ending:
            return
        self._is_ending = True
        with suppress(KeyboardInterrupt):
            self.catch_up(within_s=within_s)
        if not self._is_taken and (missing := self._copier.missing()):
            more = f" and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
            logger.warning(
                "the mirror %s lacks %s%s: to bring it up to date: %s",
                self._url,
                ", ".join(missing[:NUM_NAMED]),
                more,
                self._how_to_resume,
            )

    def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            wants_all, is_ending = self._wants_all, self._is_ending
            self._wake.clear()
            try:
                is_whole = self._copier.copy(is_last=wants_all)
            except TakenOverError as exc:
                logger.warning("the mirror %s is left alone from now on: %s", self._url, exc)
                self._is_taken = True
                self._is_whole.set()
                return
            except Exception as exc:  # noqa: BLE001 - every store has errors of its own
                self._note_failure(exc)
                is_whole = self._has_failed_long()
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            else:
                if self._failing_since is not None:
                    logger.warning("the mirror %s is up to date again", self._url)
                self._failing_since, pause_s = None, FIRST_PAUSE_S
            if wants_all and is_whole:
                self._is_whole.set()
                if is_ending:
                    return
            if self._failing_since is not None or self._wants_all:
                self._wake.wait(pause_s)
            else:
                self._wait_for_more()

    def _wait_for_more(self) -> None:
        """Return soon after a new checkpoint, or when it is time to copy the growing files."""
        until = time.monotonic() + COPY_EVERY_S
        while time.monotonic() < until and not self._copier.has_new_checkpoint():
            if self._wake.wait(LOOK_EVERY_S):
                return

    def _note_failure(self, error: Exception) -> None:
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            logger.warning(
                "the mirror %s cannot be written (%s: %s): it is tried again until it can, and the run goes "
                "on. See to its address (--set run.mirror=%s), the rights there and the network",
                self._url,
                type(error).__name__,
                error,
                shlex.quote(self._url),
            )

    def _has_failed_long(self) -> bool:
        since = self._failing_since
        return since is not None and time.monotonic() - since > FAILING_WITHIN_S
