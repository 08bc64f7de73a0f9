"""Runs a task with every connection to another machine refused: on_loopback.py TASK ARGUMENTS...

Frameworks have telemetry, and read price lists when they are imported. A refusal is printed, so that
a framework that swallows the error is still found out.
"""

import runpy
import sys

LOCAL = ("127.", "::1", "localhost", "0.0.0.0")
MARK = "A CONNECTION LEFT THIS MACHINE"


def refuse(event: str, arguments: tuple) -> None:
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else ""  # a path: a local socket
    elif event == "socket.getaddrinfo":
        host = arguments[0] or ""
    else:
        return
    host = host.decode() if isinstance(host, bytes) else str(host)
    if host and not host.startswith(LOCAL):
        print(f"{MARK}: {event} {host}", file=sys.stderr, flush=True)
        raise OSError(f"{host} is another machine")


sys.addaudithook(refuse)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
