"""Weights along a chain of receivers, over real connections, some of which break."""

import shutil
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from areal_sdk.backends.remote.weights import relay as module
from areal_sdk.backends.remote.weights.relay import Relay, send_file

TOKEN = "secret"
MakeRelay = Callable[[], Relay]


@pytest.fixture
def make() -> Iterator[MakeRelay]:
    made: list[Relay] = []

    def one() -> Relay:
        made.append(Relay("127.0.0.1", token=TOKEN))
        return made[-1]

    yield one
    for relay in made:
        relay.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(Random(0).randbytes(5 * 2**20 + 7))
    return path


def content(relay: Relay) -> bytes:
    return Path(relay.path_of("model")).read_bytes()


def test_every_receiver_of_a_chain_gets_the_whole_file(make: MakeRelay, file: Path) -> None:
    relays = [make() for _ in range(3)]
    crc, arrivals = send_file(file, "model", [relay.address for relay in relays], token=TOKEN)
    assert crc == f"{zlib.crc32(file.read_bytes()):08x}"
    assert arrivals.crc32 == {relay.address: crc for relay in relays}
    assert not arrivals.failed
    assert all(content(relay) == file.read_bytes() for relay in relays)

    file.write_bytes(b"the next version")
    send_file(file, "model", [relay.address for relay in relays], token=TOKEN)
    assert all(content(relay) == b"the next version" for relay in relays)


def test_an_empty_file_arrives_too(make: MakeRelay, tmp_path: Path) -> None:
    relay, path = make(), tmp_path / "empty"
    path.touch()
    _, arrivals = send_file(path, "model", [relay.address], token=TOKEN)
    assert arrivals.crc32 == {relay.address: "00000000"}
    assert content(relay) == b""


def test_receivers_that_cannot_be_reached_are_passed_over(make: MakeRelay, file: Path) -> None:
    relays = [make() for _ in range(4)]
    chain = [relay.address for relay in relays]
    for gone in (relays[0], relays[2]):
        gone.close()
    _, arrivals = send_file(file, "model", chain, token=TOKEN)
    assert arrivals.crc32.keys() == {chain[1], chain[3]}
    assert arrivals.failed.keys() == {chain[0], chain[2]}
    assert "cannot be reached" in arrivals.failed[chain[2]]
    assert content(relays[3]) == file.read_bytes()


@pytest.mark.parametrize("takes", [0, 100_000])
def test_one_that_breaks_off_costs_those_behind_it_and_none_before_it(
    takes: int, make: MakeRelay, file: Path
) -> None:
    first, last = make(), make()
    with socket.create_server(("127.0.0.1", 0)) as breaking:
        at = f"127.0.0.1:{breaking.getsockname()[1]}"

        def take_some() -> None:
            connection, _ = breaking.accept()
            left = takes
            while left > 0:
                left -= len(connection.recv(left))
            connection.close()

        thread = threading.Thread(target=take_some)
        thread.start()
        crc, arrivals = send_file(file, "model", [first.address, at, last.address], token=TOKEN)
        thread.join()
    assert arrivals.crc32 == {first.address: crc}
    assert arrivals.failed.keys() == {at}, "of the last one nothing is known"


def test_a_silent_receiver_is_given_up(
    make: MakeRelay, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "SILENT_MORE_S", 0.5)
    file.write_bytes(bytes(64 * 2**20))  # more than the buffers of a connection hold
    first = make()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        crc, arrivals = send_file(file, "model", [first.address, at], token=TOKEN)
    assert arrivals.crc32 == {first.address: crc}
    assert "took nothing for" in arrivals.failed[at]


def test_a_stranger_is_refused(make: MakeRelay, file: Path) -> None:
    relay = make()
    file.write_bytes(b"x")
    _, arrivals = send_file(file, "model", [relay.address], token="guessed")
    assert "belongs to another run" in arrivals.failed[relay.address]


def test_a_stranger_writes_nothing_into_the_log(
    make: MakeRelay, capfd: pytest.CaptureFixture[str]
) -> None:
    relay = make()
    host, port = relay.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"PUT /model HTTP/1.0\r\nAuthorization: Bearer gu\xe9ssed\r\n\r\n")
        assert b"403" in stranger.recv(100)
    with socket.create_server((host, 0)) as server:
        with socket.create_connection(server.getsockname()) as leaves:
            accepted, address = server.accept()
            leaves.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        relay._server.process_request_thread(accepted, address)
    assert capfd.readouterr().err == ""


def test_a_machine_without_room_says_so_and_passes_the_file_on(
    make: MakeRelay, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, roomy = make(), make()
    free = iter((0, 0))  # in memory and on the disk of the first one, which is asked first
    usage = shutil.disk_usage("/")

    def ask(_: Path) -> object:
        return usage._replace(free=next(free, usage.free))

    monkeypatch.setattr(shutil, "disk_usage", ask)
    crc, arrivals = send_file(file, "model", [full.address, roomy.address], token=TOKEN)
    assert "no room for 0.01 GB of weights" in arrivals.failed[full.address]
    assert arrivals.crc32 == {roomy.address: crc}
