"""Runs a server that must not outlive the process that started it; a program, not a module.

    python _server_guard.py PARENT_PID COMMAND ...

A server in the middle of its start has children that do not yet notice its death. This stands above
all of them, in a process group of their own, and ends the group when its parent or the server dies.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    signal.signal(signal.SIGUSR1, lambda *_: _end_all())
    # The server has got it too and takes its time; ignoring it would make the server ignore it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != int(parent):  # it died before we asked to be told
        sys.exit(1)
    subprocess.Popen(command).wait()
    _end_all()


def _end_all() -> None:
    os.killpg(0, signal.SIGKILL)  # this process is one of them


if __name__ == "__main__":
    main()
