"""Mutual authentication of the main process and a child that connects over TCP.

Both know a token; neither sends it. Each proves it over the other's fresh nonce, so that a recorded handshake cannot be
replayed, and no code is run for a stranger. The connection is not encrypted: keep it on a private network.
"""

import hashlib
import hmac
import secrets
import socket

TOKEN_VARIABLE = "AREAL_SDK_TOKEN"
"""Environment variable in which ranks find the token."""


HANDSHAKE_S = 10.0
"""Seconds that a connecting process may take to prove that it knows the token."""


def new_nonce() -> str:
    return secrets.token_hex(16)


def prove(token: str, role: str, *facts: object) -> str:
    """A MAC of `facts` under `token`. `role` keeps a reflected proof from being valid."""
    message = "\n".join([role, *(repr(fact) for fact in facts)])
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def is_proof(claim: object, token: str, role: str, *facts: object) -> bool:
    return isinstance(claim, str) and is_equal(claim, prove(token, role, *facts))


def is_equal(claim: str, secret: str) -> bool:
    """Whether a stranger's text is the secret, in a time that does not tell how much of it is right.

    >>> is_equal("secret", "secret"), is_equal("secr\\u00e9t", "secret"), is_equal("\\ud83d", "secret")
    (True, False, False)
    """
    return hmac.compare_digest(claim.encode(errors="replace"), secret.encode())


def notice_dead_peers(sock: socket.socket) -> None:
    """Make the kernel detect within about half a minute that the other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, option):  # the names differ outside of Linux
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def join_address(host: str, port: int) -> str:
    """Host and port as one text, which `split_address` reads.

    >>> join_address("10.0.0.1", 5000), join_address("::1", 80)
    ('10.0.0.1:5000', '[::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address; ValueError if it has none.

    >>> split_address("10.0.0.1:5000"), split_address("[::1]:80")
    (('10.0.0.1', 5000), ('::1', 80))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"an address is HOST:PORT, not {address!r}")
    return host.strip("[]"), int(port)
