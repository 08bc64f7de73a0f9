"""Runs a server that must not outlive the process that started it; a program, not a module.

    python guard.py PARENT_PID COMMAND ...

While a server starts, its children do not yet notice its death. This program is the parent of the server
and leads a process group with all of them. It ends the group when its own parent or the server dies.
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
