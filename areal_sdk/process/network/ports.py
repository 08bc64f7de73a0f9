"""A free port that is kept for the process that listens on it later."""

import socket
from typing import Self


class KeptPort:
    """A free TCP port of this machine. Nobody gets it by chance until it is closed.

    Its socket is bound and never listens. The kernel gives such a port to no connection and to nobody who
    asks for any port, but a server may bind it: servers set SO_REUSEADDR, as this socket does.
    """

    def __init__(self, number: int = 0) -> None:
        """Any free port, or the port `number`, which another process may keep too."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", number))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    @property
    def is_free(self) -> bool:
        """Whether no process listens on the port. A server that was told to take this port is such a process."""
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("", self.number))
            except OSError:
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """A listener keeps its port."""
        self._socket.close()
