import socket

import pytest

from areal_sdk.process.network.listen import KeptPort


def test_a_kept_port_is_free_for_a_server_and_for_nobody_else() -> None:
    with KeptPort() as kept, KeptPort(kept.number), socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", kept.number))
        with socket.create_server(("127.0.0.1", kept.number)) as server:
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()
            with pytest.raises(OSError, match="in use"):
                KeptPort(kept.number)


def test_a_listener_keeps_its_port_when_nobody_keeps_it_any_more() -> None:
    kept = KeptPort()
    with socket.create_server(("127.0.0.1", kept.number)) as server:
        kept.close()
        socket.create_connection(server.getsockname()).close()
