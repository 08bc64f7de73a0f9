"""The program that joins a run as one of its processes. Launchers start it, on any machine:

AREAL_SDK_TOKEN=... python -m areal_sdk.join HOST:PORT NAME

HOST:PORT is the launcher's listener, and the token that listener's. The program runs the entry that the listener has
for NAME, and ends with the process that started it.
"""

import os
import sys
from collections.abc import Sequence

from areal_sdk.errors import ProcessError
from areal_sdk.process.entry import die_with_parent
from areal_sdk.process.network.handshake import TOKEN_VARIABLE
from areal_sdk.process.network.join import connect_and_run

CONNECT_TIMEOUT_S = 60.0
"""Seconds for this process to reach the main process."""
START_TIMEOUT_S = 600.0
"""Seconds for the main process to send the entry, once all other processes of the job have connected."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: that of the entry, 1 if the run refused this process, 2 if it was started wrongly."""
    if len(arguments) != 2 or TOKEN_VARIABLE not in os.environ:
        sys.stderr.write(
            f"Started by a launcher: {TOKEN_VARIABLE}=... python -m areal_sdk.join HOST:PORT NAME\n"
        )
        return 2
    address, name = arguments
    die_with_parent(os.getppid())
    try:
        return connect_and_run(
            address,
            token=os.environ.pop(TOKEN_VARIABLE),
            name=name,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            start_timeout_s=START_TIMEOUT_S,
        )
    except (ProcessError, ValueError) as exc:
        sys.stderr.write(f"{name}: {exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
