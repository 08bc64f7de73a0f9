"""Room for weights that arrive on a machine."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from areal_sdk.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")


def take_room(size: int, *, whose: str) -> IO[bytes]:
    """A file of `size` bytes without a name, which ends with this process: in memory if it fits there, else on disk.

    `whose` names the machine in the error: `the engine's`.
    """
    tried = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    for directory in tried:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(directory).free < size:
                continue
            file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the caller closes it
            try:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                file.close()
                raise
            return file
    raise EngineError(
        f"no room for {size / 1e9:.2f} GB of weights on {whose} machine, neither in "
        f"{' nor in '.join(map(str, tried))}: free some there, or name another directory for temporary "
        "files (TMPDIR)"
    )
