"""Children that connect over TCP: the token opens the door, and nothing else does."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import numpy as np
import pytest

from areal_sdk.errors import CallTimeoutError, ChildDiedError, ProcessError, RemoteError
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.listen import Listener

CONNECT = """
import sys
from areal_sdk.errors import ProcessError
from areal_sdk.process.network.join import connect_and_run
address, token, name = sys.argv[1:]
try:
    code = connect_and_run(address, token=token, name=name, connect_timeout_s=1, start_timeout_s=60)
except ProcessError as exc:
    sys.exit(str(exc))
sys.exit(code)
"""


def connect(address: str, token: str, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CONNECT, address, token, name]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@contextmanager
def peers(listener: Listener, names: Sequence[str]) -> "Iterator[list[subprocess.Popen[str]]]":
    processes = [connect(listener.address, listener.token, name) for name in names]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


@asynccontextmanager
async def one_child(entry: str = "serve") -> "AsyncIterator[tuple[Child, subprocess.Popen[str]]]":
    async with await Listener.open() as listener:
        with peers(listener, ["far"]) as (process,):
            spec = ProcessSpec("far", f"tests.process.entries:{entry}", threads=3)
            (child,) = await listener.accept({"far": spec}, timeout_s=60)
            yield child, process
            await child.aclose(grace_s=0.5)


async def waiting_at(listener: Listener, count: int) -> None:
    async with asyncio.timeout(60):
        while len(listener._waiting) < count:
            listener._arrived.clear()
            await listener._arrived.wait()


async def ended(process: "subprocess.Popen[str]") -> int:
    return await asyncio.to_thread(process.wait, 5)


async def test_a_child_over_tcp_answers_like_any_other() -> None:
    blob = np.arange(5_000_000)
    async with one_child() as (child, process):
        assert child.hello == {"pid": process.pid, "threads": "3"}
        assert child.pid == process.pid
        reply = await child.call("echo", "hi", [blob], timeout_s=60)
        assert np.array_equal(np.frombuffer(reply.buffers[0], np.int64), blob)
        with pytest.raises(RemoteError, match="ValueError: no"):
            await child.call("fail", "no", timeout_s=60)
        await child.aclose()
        assert await ended(process) == 0


async def test_its_death_is_noticed_long_before_the_call_is_late() -> None:
    async with one_child() as (child, process):
        call = asyncio.create_task(child.call("hang", timeout_s=60))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        with pytest.raises(
            ChildDiedError, match=rf"127.0.0.1.*closed.*output of pid {process.pid}"
        ):
            await call
        assert time.monotonic() - began < 20.0


async def test_it_leaves_as_a_failure_when_the_main_process_is_gone() -> None:
    """torchrun waits five minutes for the other machines of a process that ended well."""
    async with await Listener.open() as listener:
        with peers(listener, ["far"]) as (process,):
            spec = ProcessSpec("far", "tests.process.entries:serve")
            (child,) = await listener.accept({"far": spec}, timeout_s=60)
            await child.kill()
            assert await ended(process) == os.EX_UNAVAILABLE


async def test_a_missed_deadline_asks_it_for_its_stacks() -> None:
    async with one_child() as (child, process):
        with pytest.raises(CallTimeoutError):
            await child.call("spin", timeout_s=0.2)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: any("in spin" in line for line in lines))


async def test_a_wrong_token_is_refused_and_named() -> None:
    async with await Listener.open() as listener:
        with connect(listener.address, "guess", "far") as stranger:
            assert await ended(stranger) == 1
            assert stranger.stderr is not None
            assert "refused this process: it does not know the token" in stranger.stderr.read()
        spec = ProcessSpec("far", "tests.process.entries:serve")
        with pytest.raises(ProcessError, match=r"1 of 1 .*: far; refused: 127.0.0.1: it does not"):
            await listener.accept({"far": spec}, timeout_s=0.1)


async def test_a_child_runs_nothing_for_a_main_process_that_does_not_know_the_token() -> None:
    async with await Listener.open(token="right") as listener:
        with peers(listener, ["far"]) as (process,):
            await waiting_at(listener, 1)
            listener.token = "wrong"
            spec = ProcessSpec("far", "tests.process.entries:serve")
            with pytest.raises(ChildDiedError):
                await listener.accept({"far": spec}, timeout_s=60)
            assert await ended(process) == 1
            assert process.stderr is not None
            assert "does not know the token, so its entry is not run" in process.stderr.read()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x02\0\0\0{}"])
async def test_garbage_is_refused_and_harms_nobody(garbage: bytes) -> None:
    async with await Listener.open() as listener:
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        async with asyncio.timeout(60):
            assert b"refused" in (await reader.read()).lower()
        writer.close()
        with peers(listener, ["far"]):
            spec = ProcessSpec("far", "tests.process.entries:serve")
            (child,) = await listener.accept({"far": spec}, timeout_s=60)
            await child.aclose(grace_s=0.5)


async def test_who_did_not_connect_is_named() -> None:
    async with await Listener.open() as listener:
        with peers(listener, ["rank-1", "stray"]):
            await waiting_at(listener, 2)
            specs = {f"rank-{i}": ProcessSpec(f"trainer-{i}", "x:y") for i in range(3)}
            message = r"2 of 3 processes .* within 0.1 s: rank-0, rank-2; others that did: stray"
            with pytest.raises(ProcessError, match=message):
                await listener.accept(specs, timeout_s=0.1)


async def test_one_that_cannot_start_ends_them_all() -> None:
    async with await Listener.open() as listener:
        with peers(listener, ["a", "b"]) as processes:
            specs = {
                "a": ProcessSpec("a", "tests.process.entries:serve"),
                "b": ProcessSpec("b", "tests.process.entries:refuses"),
            }
            with pytest.raises(RemoteError, match=r"b failed to start.*no such model"):
                await listener.accept(specs, timeout_s=60)
            assert [await ended(process) for process in processes] == [os.EX_UNAVAILABLE, 1]


async def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            await Listener.open(port=port)


def test_an_address_where_nobody_listens_names_the_cure() -> None:
    with connect("127.0.0.1:9", "token", "far") as process:
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert "no process answers at 127.0.0.1:9" in process.stderr.read()
