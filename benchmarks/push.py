"""New weights to N machines over links of a limited rate: along the chain, and to each by itself.

    python benchmarks/push.py [--megabytes 64] [--rate 20] [--machines 1 2 4 8] [--write]

Everything is on this machine; a proxy in front of each receiver lets through `rate` MB/s. To each by itself, all
proxies share one rate: that of the main process's link. In theory a push along the chain takes size / rate, however many
machines there are; to each by itself it takes that many times as long.
"""

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tables import table, write_section

from areal_sdk.backends.remote.weights.relay import Relay, send_file
from areal_sdk.process.network.handshake import split_address

TOKEN = "secret"
MB = 10**6
PIECE_BYTES = 64 * 1024
BUFFER_BYTES = 128 * 1024
"""Bytes of each socket buffer of a proxy: bytes in it have not gone over the link yet."""

LATE_S = 0.1
"""A thread that this busy machine wakes late makes up for so much: a link does not sleep."""


class Rate:
    """Lets bytes through at a rate, whoever sends them."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()
        self.num_bytes = 0

    def wait(self, count: int) -> None:
        with self._lock:
            self.num_bytes += count
            idle_since = time.monotonic() - LATE_S
            self._free_at = max(idle_since, self._free_at) + count / self._bytes_per_s
            due = self._free_at
        time.sleep(max(0.0, due - time.monotonic()))


class Link:
    """A proxy to a receiver."""

    def __init__(self, receiver: str, rate: Rate) -> None:
        self._receiver, self._rate = receiver, rate
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._socket.accept()
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            far.connect(split_address(self._receiver))
            for pair in ((near, far, self._rate), (far, near, None)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, rate: Rate | None) -> None:
        while piece := source.recv(PIECE_BYTES):
            if rate is not None:
                rate.wait(len(piece))
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


def along_the_chain(path: Path, relays: Sequence[Relay], rate: float) -> tuple[float, int]:
    """Seconds, and bytes that the main process sent."""
    rates = [Rate(rate) for _ in relays]
    links = [Link(r.address, own) for r, own in zip(relays, rates, strict=True)]
    began = time.monotonic()
    crc, arrivals = send_file(path, "model", [link.address for link in links], token=TOKEN)
    seconds = time.monotonic() - began
    assert set(arrivals.crc32.values()) == {crc}, arrivals
    assert len(arrivals.crc32) == len(relays), arrivals
    return seconds, rates[0].num_bytes


def to_each_by_itself(path: Path, relays: Sequence[Relay], rate: float) -> tuple[float, int]:
    """Seconds, and bytes that the main process sent."""
    shared = Rate(rate)
    links = [Link(relay.address, shared) for relay in relays]
    began = time.monotonic()
    with ThreadPoolExecutor(len(links)) as threads:
        sending = [
            threads.submit(send_file, path, "model", [link.address], token=TOKEN) for link in links
        ]
        for sent in sending:
            crc, arrivals = sent.result()
            assert list(arrivals.crc32.values()) == [crc], arrivals
    return time.monotonic() - began, shared.num_bytes


def main(megabytes: int, rate: float, machines: Sequence[int], write: bool) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "weights"
        path.write_bytes(os.urandom(megabytes * MB))
        for count in machines:
            relays = [Relay("127.0.0.1", token=TOKEN) for _ in range(count)]
            chain_s, chain_bytes = along_the_chain(path, relays, rate * MB)
            each_s, each_bytes = to_each_by_itself(path, relays, rate * MB)
            for relay in relays:
                relay.close()
            theory_s = megabytes / rate
            rows.append(
                [
                    count,
                    *(f"{chain_bytes / MB:.0f} MB", f"{chain_s:.2f} s", f"{theory_s:.2f} s"),
                    *(f"{each_bytes / MB:.0f} MB", f"{each_s:.2f} s", f"{theory_s * count:.2f} s"),
                ]
            )
            print(*rows[-1], flush=True)
    header = [
        "machines",
        "chain: sent",
        "time",
        "theory",
        "to each by itself: sent",
        "time",
        "theory",
    ]
    if write:
        command = f"python benchmarks/push.py --megabytes {megabytes} --rate {rate:g} --write"
        write_section(
            "push",
            f"""## New weights to machines without a shared file system

{megabytes} MB of weights to servers on 1 to 8 machines, over links of {rate:g} MB/s. "Sent" is what leaves the main process. A link may make up for
0.1 s in which it sent nothing, so a time can be a little below theory.

{table(header, rows)}

`{command}`: all machines are this one (2 cores, busy), with a proxy that limits each link.""",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rate", type=float, default=20.0, help="MB/s of each link")
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    main(arguments.megabytes, arguments.rate, arguments.machines, arguments.write)
