"""Children, for real: they answer, stream, hang, and get killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from areal_sdk.errors import CallTimeoutError, ChildDiedError, RemoteError
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.child import kill_all
from tests.toolbox.processes import children_of_this_process, is_alive

ENTRIES = "tests.process.entries"


@asynccontextmanager
async def running(tmp_path: Path, entry: str = "serve") -> AsyncIterator[Child]:
    spec = ProcessSpec("engine", f"{ENTRIES}:{entry}", {"who": "the test"})
    child = await spawn(spec, log_dir=tmp_path)
    try:
        yield child
    finally:
        await child.aclose(grace_s=0.5)


async def eventually(claim: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            result = claim()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)


async def test_a_child_says_hello_answers_and_leaves(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        assert child.hello == {"pid": child.pid, "threads": "1"}
        reply = await child.call("echo", {"a": [1, None]}, [b"", b"xyz"], timeout_s=60)
        assert reply.payload == {"a": [1, None]}
        assert [bytes(b) for b in reply.buffers] == [b"", b"xyz"]
    assert child.exited.result().code == 0
    assert "hello from the test" in child.log_path.read_text()
    await child.aclose()  # idempotent


async def test_numpy_arrays_travel_as_buffers(tmp_path: Path) -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(10)[::2], np.zeros((0, 4))]
    async with running(tmp_path) as child:
        back = (await child.call("echo", None, arrays, timeout_s=60)).buffers
    assert np.array_equal(np.frombuffer(back[0]).reshape(2, 3), arrays[0])
    assert np.array_equal(np.frombuffer(back[1], np.int64), [0, 2, 4, 6, 8])
    assert back[2].nbytes == 0


async def test_big_buffers_cross_in_both_directions_at_once(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).integers(0, 256, 100_000_000, np.uint8)
    async with running(tmp_path) as child:
        replies = await asyncio.gather(
            *(child.call("echo", i, [blob], timeout_s=60) for i in range(3)),
            child.call("echo", "small", timeout_s=60),
        )
    assert [reply.payload for reply in replies] == [0, 1, 2, "small"]
    assert all(np.array_equal(np.frombuffer(r.buffers[0], np.uint8), blob) for r in replies[:3])


async def test_an_exception_in_the_child_names_its_kind(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        with pytest.raises(RemoteError, match="engine: fail: ValueError: no such row") as caught:
            await child.call("fail", "no such row", timeout_s=60)
        assert (caught.value.kind, caught.value.message) == ("ValueError", "no such row")
        assert (await child.call("echo", 1, timeout_s=60)).payload == 1


async def test_a_killed_child_fails_its_pending_calls_long_before_they_are_late(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as child:
        call = asyncio.create_task(child.call("hang", timeout_s=60))
        other = asyncio.create_task(child.call("echo", timeout_s=60))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildDiedError, match=r"killed by SIGKILL.*engine\.log"):
            await call
        assert time.monotonic() - started < 30.0, "half of the deadline of the calls"
        with pytest.raises(ChildDiedError):
            await other
        with pytest.raises(ChildDiedError):
            await child.call("echo", timeout_s=60)
        assert child.exited.result().signal == signal.SIGKILL


async def test_the_error_of_a_dead_child_ends_with_its_last_words(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        with pytest.raises(ChildDiedError, match="last line: about to die"):
            await child.call("kill", timeout_s=60)


async def test_last_words_of_an_earlier_life_are_not_repeated(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        with pytest.raises(ChildDiedError, match="about to die"):
            await child.call("kill", timeout_s=60)
    async with running(tmp_path) as child:
        os.kill(child.pid, signal.SIGKILL)
        assert (await child.exited).last_lines == ("hello from the test",)


async def test_an_answer_sent_just_before_death_still_arrives(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        reply = await child.call("leave", timeout_s=60)
        assert reply.payload == "bye"
        assert reply.buffers[0].nbytes == 3_000_000
        assert (await child.exited).code == 3


async def test_a_stopped_child_misses_its_deadline(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(CallTimeoutError, match=r"'echo' did not answer within 0.3 s.*log"):
            await child.call("echo", timeout_s=0.3)
        assert not child.exited.done()


async def test_a_missed_deadline_leaves_the_stack_in_the_log(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        with pytest.raises(CallTimeoutError):
            await child.call("spin", timeout_s=0.3)
        await eventually(lambda: "in spin" in child.log_path.read_text())


async def test_a_stream_brings_every_part_and_the_last_one(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        parts = child.stream("count", {"to": 3, "pause_s": 0.0}, idle_timeout_s=60)
        got = [(part.payload, [bytes(b) for b in part.buffers]) async for part in parts]
    assert got == [(0, [b"0"]), (1, [b"1"]), (2, [b"2"]), ({"total": 3}, [])]


async def test_leaving_a_stream_early_cancels_it_in_the_child(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        stream = child.stream("count", {"to": 100_000, "pause_s": 0.01}, idle_timeout_s=60)
        async with aclosing(stream):
            async for part in stream:
                if part.payload == 2:
                    break
        reached = (await child.call("reached", timeout_s=60)).payload
        assert 3 <= reached < 100


async def test_a_cancelled_call_that_waits_in_the_queue_is_never_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        busy = child.stream("count", {"to": 30, "pause_s": 0.01}, idle_timeout_s=60)
        async with aclosing(busy):
            await anext(busy)
            doomed = asyncio.create_task(child.call("kill", timeout_s=60))
            await asyncio.sleep(0.05)
            doomed.cancel()
            await asyncio.gather(doomed, return_exceptions=True)
        assert (await child.call("echo", "alive", timeout_s=60)).payload == "alive"


async def test_a_silent_stream_misses_its_deadline(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        with pytest.raises(CallTimeoutError, match=r"'count' sent nothing for 0.2 s"):
            async for _ in child.stream("count", {"to": 5, "pause_s": 60}, idle_timeout_s=0.2):
                pass


async def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"engine failed to start.*ValueError: no such model"):
        await spawn(ProcessSpec("engine", f"{ENTRIES}:refuses"), log_dir=tmp_path)
    with pytest.raises(RemoteError, match="has no attribute 'missing'"):
        await spawn(ProcessSpec("engine", f"{ENTRIES}:missing"), log_dir=tmp_path)


async def test_a_child_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    spec = ProcessSpec("engine", f"{ENTRIES}:never_ready")
    with pytest.raises(CallTimeoutError, match=r"was not ready within 1 s.*engine\.log") as caught:
        await spawn(spec, log_dir=tmp_path, start_timeout_s=1.0)
    pid = int(str(caught.value).split("pid ")[1].split(")")[0])
    assert not is_alive(pid)


async def test_a_child_that_will_not_leave_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path, "deaf") as child:
        await child.aclose(grace_s=0.1)
        assert child.exited.result().signal == signal.SIGKILL


async def test_nothing_that_a_child_started_outlives_it(tmp_path: Path) -> None:
    async with running(tmp_path) as child:
        grandchild = (await child.call("litter", timeout_s=60)).payload
        assert is_alive(grandchild)
        os.kill(child.pid, signal.SIGKILL)
        await child.exited
        await eventually(lambda: not is_alive(grandchild))


@pytest.mark.parametrize("num_ticks", [*range(8), 200])
async def test_a_cancelled_spawn_leaves_no_process(
    tmp_path: Path, num_ticks: int, others: set[str]
) -> None:
    spec = ProcessSpec("engine", f"{ENTRIES}:never_ready")
    starting = asyncio.create_task(spawn(spec, log_dir=tmp_path))
    for _ in range(num_ticks):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children_of_this_process() <= others


@pytest.mark.parametrize("num_ticks", range(4))
async def test_killing_is_seen_through_when_it_is_cancelled(tmp_path: Path, num_ticks: int) -> None:
    async with running(tmp_path) as child:
        killing = asyncio.create_task(kill_all([child]))
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        assert child.exited.done() == (num_ticks > 0)  # before, it had not begun


PARENT = """
import asyncio, sys
from pathlib import Path
from areal_sdk.process import ProcessSpec, spawn

async def main():
    spec = ProcessSpec("engine", "tests.process.entries:serve")
    child = await spawn(spec, log_dir=Path(sys.argv[1]))
    print(child.pid, flush=True)
    await child.call("spin", timeout_s=600)

asyncio.run(main())
"""


def test_a_busy_child_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    asyncio.run(eventually(lambda: not is_alive(pid)))
