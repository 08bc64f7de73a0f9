"""A program has its resources in a sandbox; its end is told, and a failure is blamed on the right
part."""

import asyncio
import doctest
import os
import shutil
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from isolation import needs_bubblewrap

from areal_sdk_sandbox import (
    INNER_ADDRESS,
    Isolation,
    Limits,
    Sandbox,
    SandboxError,
    limits,
    seccomp,
    supervisor,
)
from areal_sdk_sandbox.accounting import descendants
from areal_sdk_sandbox.run import _find_bubblewrap, _warn
from areal_sdk_sandbox.supervisor import Warden

BOTH: list[object] = ["rlimits", pytest.param("bubblewrap", marks=needs_bubblewrap)]
both = pytest.mark.parametrize("isolation", BOTH)
ROOMY = Limits(wall_s=120.0)
"""The limits of a program that shall end by itself, however busy the machine is."""
SLEEP = ["python3", "-I", "-c", "import time; print('up', flush=True); time.sleep(600)"]


@both
async def test_a_program_gets_its_input_its_files_and_the_variables_given(
    isolation: Isolation,
) -> None:
    code = "import os, sys; print(sys.stdin.read(), open('a.txt').read(), os.environ['WORD'])"
    end = await Sandbox(ROOMY, isolation=isolation).run(
        ["python3", "-I", "-c", code], stdin=b"in", files={"a.txt": b"file"}, env={"WORD": "word"}
    )
    assert (end.code, end.limit, end.stdout) == (0, None, b"in file word\n")


@both
async def test_what_the_programs_own_code_does_is_told_and_raises_nothing(
    isolation: Isolation,
) -> None:
    end = await Sandbox(ROOMY, isolation=isolation).run(
        ["python3", "-I", "-c", "import sys; sys.exit('no')"]
    )
    assert (end.code, end.stderr) == (1, b"no\n")
    assert str(end) == "exit code 1"


@both
async def test_a_met_limit_is_told_by_name_and_value(isolation: Isolation) -> None:
    end = await Sandbox(Limits(wall_s=0.5), isolation=isolation).run(SLEEP)
    assert (end.code, end.limit) == (None, "wall")
    assert str(end) == "ended at its wall limit of 0.5 s of wall time"


@both
@pytest.mark.parametrize(("megabytes", "limit"), [(170, "memory"), (20, None)])
async def test_the_limit_is_named_also_when_nobody_looked_in_time(
    isolation: Isolation, megabytes: int, limit: str | None
) -> None:
    code = f"x = b'x' * ({megabytes} << 20); raise MemoryError"
    end = await Sandbox(Limits(wall_s=120.0, memory_mb=100), isolation=isolation).run(
        ["python3", "-I", "-c", code]
    )
    assert end.limit == limit, end


@both
@pytest.mark.parametrize(
    "begins",
    [
        pytest.param(
            "os.posix_spawn('/bin/true', ['true'], {}, file_actions="
            "[(os.POSIX_SPAWN_OPEN, 0, 'gate', os.O_RDONLY, 0)])",
            id="before its exec",
        ),
        pytest.param(
            "any(os.fork() == 0 for _ in range(3)) or open('gate').read()", id="after a fork"
        ),
    ],
)
async def test_memory_that_processes_share_counts_once(isolation: Isolation, begins: str) -> None:
    code = (
        "import os, time\nos.mkfifo('gate')\nif os.fork() == 0:\n"
        "  time.sleep(3); open('gate', 'w').close(); os._exit(0)\n"
        f"x = b'x' * (60 << 20)\n{begins}\ntime.sleep(1)\nos._exit(0)"
    )
    end = await Sandbox(Limits(wall_s=120.0, memory_mb=100), isolation=isolation).run(
        ["python3", "-I", "-c", code]
    )
    assert (end.limit, end.code) == (None, 0), end
    assert 60 < end.peak_memory_mb < 100


@both
async def test_a_program_that_is_not_there_is_a_fault_of_the_sandbox(isolation: Isolation) -> None:
    with pytest.raises(SandboxError, match=r"did not start.*no-such-program"):
        await Sandbox(ROOMY, isolation=isolation).run(["no-such-program"])


@both
async def test_a_python_started_by_a_path_with_dots_starts_programs(
    isolation: Isolation, tmp_path: Path
) -> None:
    code = (
        "import asyncio\nfrom areal_sdk_sandbox import Sandbox\n"
        f"sandbox = Sandbox(isolation={isolation!r})\n"
        "print(asyncio.run(sandbox.run(['python3', '-c', 'print(7)'])).stdout)"
    )
    dotted = f"{tmp_path}{'/..' * len(tmp_path.parts[1:])}{sys.executable}"
    process = await asyncio.create_subprocess_exec(
        dotted, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert (await process.communicate())[0] == b"b'7\\n'\n"


@both
async def test_sandboxes_run_side_by_side(isolation: Isolation) -> None:
    sandbox = Sandbox(Limits(wall_s=120.0, processes=4), isolation=isolation)
    words = [
        ["python3", "-I", "-c", f"open('own', 'w').write('{n}'); print({n})"] for n in range(4)
    ]
    ends = await asyncio.gather(*(sandbox.run(one) for one in words))
    assert [end.stdout for end in ends] == [b"0\n", b"1\n", b"2\n", b"3\n"]


@both
async def test_a_cancelled_run_leaves_no_process(isolation: Isolation) -> None:
    reader, writer = os.pipe()
    code = f"import os, time; os.write({writer}, b'up'); time.sleep(600)"
    run = Sandbox(ROOMY, isolation=isolation).run(["python3", "-I", "-c", code], pass_fds=[writer])
    task = asyncio.create_task(run)
    assert await asyncio.to_thread(os.read, reader, 2) == b"up"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(writer)
    assert os.read(reader, 1) == b""  # no process holds the other end any more
    os.close(reader)


@both
async def test_a_supervisor_that_dies_is_a_fault_of_the_machine(isolation: Isolation) -> None:
    reader, writer = os.pipe()
    code = f"import os, time; os.write({writer}, b'up'); time.sleep(600)"
    run = Sandbox(ROOMY, isolation=isolation).run(["python3", "-I", "-c", code], pass_fds=[writer])
    task = asyncio.create_task(run)
    assert await asyncio.to_thread(os.read, reader, 2) == b"up"
    os.close(writer)
    os.close(reader)
    below = descendants(os.getpid())
    supervisors = [pid for pid in below if "supervisor.py" in _command_line(pid)]
    members = descendants(supervisors[0])
    os.kill(supervisors[0], signal.SIGKILL)
    with pytest.raises(SandboxError, match="without a report"):
        await task
    if (
        isolation == "rlimits"
    ):  # under bubblewrap the kernel ends it; here whoever ends the family does
        for pid in members:
            os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


async def test_bubblewrap_that_was_asked_for_and_is_missing_is_an_error_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("python3") or "") + "/nothing")
    _find_bubblewrap.cache_clear()
    _warn.cache_clear()
    try:
        with pytest.raises(SandboxError, match=r"not installed.*apt install bubblewrap"):
            await Sandbox(isolation="bubblewrap").run(["true"])
        assert not await Sandbox().is_isolated()
        assert "WITHOUT a sandbox" in caplog.text
    finally:
        _find_bubblewrap.cache_clear()


@needs_bubblewrap
async def test_one_address_outside_is_reached_and_no_other() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = (
        "import socket, sys\nfor address in sys.argv[1:]:\n  try:\n"
        "    host, port = address.split(':')\n    s = socket.create_connection((host, int(port)), 2)\n"
        "    s.sendall(b'x' * 200000)\n    s.shutdown(socket.SHUT_WR)\n    got = b''\n"
        "    while part := s.recv(9999): got += part\n    print(len(got), set(got))\n"
        "  except OSError as e: print(type(e).__name__)\n"
    )
    words = ["python3", "-I", "-c", code, INNER_ADDRESS, f"127.0.0.1:{port}"]
    async with server:
        end = await Sandbox(ROOMY).run(words, reaches=("127.0.0.1", port))
        assert end.stdout.decode().split("\n")[:2] == ["200000 {88}", "ConnectionRefusedError"]
        alone = await Sandbox(ROOMY).run(words[:-1])
        assert alone.stdout == b"ConnectionRefusedError\n"


async def test_without_bubblewrap_no_address_is_reached() -> None:
    with pytest.raises(SandboxError, match=r"allow no network.*install bubblewrap"):
        await Sandbox(isolation="rlimits").run(["true"], reaches=("127.0.0.1", 1))


@needs_bubblewrap
@pytest.mark.skipif(shutil.which("awk") is None, reason="needs awk")
async def test_programs_that_are_links_in_etc_run() -> None:
    """`awk` is /etc/alternatives/awk on Debian; root's directories were closed to the program's user."""
    assert (await Sandbox(ROOMY).run(["awk", "BEGIN { print 7 }"])).stdout == b"7\n"


@needs_bubblewrap
async def test_a_program_fills_directories_of_its_own_up_to_the_limit() -> None:
    code = (
        "import os\nprint(os.listdir('/app'))\nos.mkdir('/app/a')\nopen('/logs/x', 'w').write('x')\n"
        "try: open('/app/big', 'wb').write(b'x' * (5 << 20))\nexcept OSError as e: print(e.strerror)\n"
        "try: os.mkdir('/more')\nexcept OSError as e: print(e.strerror)\n"
    )
    sandbox = Sandbox(Limits(wall_s=120.0, disk_mb=4), writable=["/app", "/logs"])
    end = await sandbox.run(["python3", "-I", "-c", code])
    assert end.stdout.decode().splitlines() == ["[]", "File too large", "Read-only file system"]
    many = "for n in range(10**6): open(f'/app/{n}', 'w').close()"
    limits = Limits(wall_s=120.0, cpu_s=60.0, memory_mb=30)
    end = await Sandbox(limits, writable=["/app"]).run(["python3", "-I", "-c", many])
    assert end.limit == "memory", end


@pytest.mark.parametrize("path", ["/", "/usr", "/app/inner", "app", "/..", "/tmp"])
def test_a_directory_that_a_sandbox_has_is_no_new_one(path: str) -> None:
    with pytest.raises(ValueError, match="give a new directory at the root, such as /app"):
        Sandbox(writable=[path])


async def test_without_bubblewrap_there_are_no_new_directories() -> None:
    with pytest.raises(SandboxError, match=r"make no directory /app.*install bubblewrap"):
        await Sandbox(isolation="rlimits", writable=["/app"]).run(["true"])


@both
async def test_processes_share_memory_in_a_file(isolation: Isolation) -> None:
    """Mappings without a file are refused: pages that they drop stay in memory, where nobody counts them."""
    code = (
        "import mmap, os\n"
        "with open('shared', 'w+b') as file:\n"
        "    file.truncate(4096); shared = mmap.mmap(file.fileno(), 4096)\n"
        "own = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE); own[0] = 1\n"
        "if os.fork() == 0: shared[0] = 7; os._exit(0)\n"
        "os.wait(); print(shared[0], open('/dev/zero', 'rb').read(9))\n"
    )
    end = await Sandbox(ROOMY, isolation=isolation).run(["python3", "-I", "-c", code])
    assert end.stdout == b"7 " + repr(bytes(9)).encode() + b"\n", end


@pytest.mark.parametrize("module", [limits, seccomp])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    tried = doctest.testmod(module)
    assert (tried.attempted > 0, tried.failed) == (True, 0)


async def test_files_stay_inside_the_working_directory() -> None:
    with pytest.raises(ValueError, match="plain name"):
        await Sandbox().run(["true"], files={"../x": b""})


def test_a_process_elsewhere_with_the_number_of_an_ended_one_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel_kb = {7: 1024, 99: 600 << 10}  # 99 ended here, and is a process of another sandbox now
    monkeypatch.setattr(supervisor, "is_inside", kernel_kb.__contains__)
    monkeypatch.setattr(supervisor, "kernel_kb", lambda pid, places: kernel_kb[pid])
    warden = Warden({"outer": ["bwrap"], "writable": [], "limits": {}}, b"", 0)
    assert warden._kernel_mb([99, 7]) == 600.0
    assert warden._kernel_mb([7]) == 1.0
