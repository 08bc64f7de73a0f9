"""The process that a host of Ray starts: it joins the run, and dies with its host.

python -m areal_sdk.launch.ray.join HOST:PORT NAME
"""

import os
import sys

from areal_sdk.errors import ProcessError
from areal_sdk.launch.launcher import START_TIMEOUT_S
from areal_sdk.process.entry import die_with_parent
from areal_sdk.process.network.handshake import TOKEN_VARIABLE
from areal_sdk.process.network.join import connect_and_run

CONNECT_TIMEOUT_S = 60.0
"""Seconds for a placed process to reach the main process."""


def main(address: str, name: str) -> int:
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
    sys.exit(main(*sys.argv[1:]))
