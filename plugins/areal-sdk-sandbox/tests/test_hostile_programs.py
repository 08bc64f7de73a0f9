"""Programs that mean harm: none gets out, none outlives its sandbox, and each limit is named."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import HOSTILE, IN_THE_KERNEL, Hostile
from isolation import needs_bubblewrap

from areal_sdk_sandbox import Isolation, Limits, Sandbox

LIMITS = Limits(wall_s=120.0, cpu_s=1.0, memory_mb=100, processes=16, output_kb=256, disk_mb=32)
SLEEPS_S = 1.0
"""The limit of programs that are ended by the clock."""

CASES = [
    *(
        pytest.param("bubblewrap", one, id=f"{one.name}-bubblewrap", marks=needs_bubblewrap)
        for one in HOSTILE
    ),
    *(
        pytest.param("rlimits", one, id=f"{one.name}-rlimits")
        for one in HOSTILE
        if not one.only_isolated
    ),
]


class Outside:
    """The things that programs may not reach."""

    def __init__(self, directory: Path) -> None:
        self.secret = directory / "secret"
        self.secret.write_text("SECRET-OF-THE-TEST")
        self.canary = directory / "canary"
        self.canary.write_text("unharmed")
        self.marker = secrets.token_hex(8)
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(f"\0{self.marker}")
        self.unix.listen()

    def code(self, program: Hostile) -> str:
        return program.code.format(
            secret=str(self.secret),
            canary=str(self.canary),
            marker=self.marker,
            port=self.tcp.getsockname()[1],
            socket=self.marker,
            pid=os.getpid(),
            uid=os.getuid(),
            is_root=os.getuid() == 0,
        )

    def survivors(self) -> list[str]:
        """Processes that run code with the marker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name != str(os.getpid()):
                try:
                    if self.marker.encode() in (entry / "cmdline").read_bytes():
                        found.append(entry.name)
                except OSError:
                    continue
        return found


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setenv("AREAL_SDK_TEST_SECRET", "SECRET-OF-THE-TEST")
    made = Outside(tmp_path)
    with made.tcp, made.unix:
        yield made


@pytest.mark.parametrize(("isolation", "program"), CASES)
async def test_a_hostile_program_is_contained(
    isolation: Isolation, program: Hostile, outside: Outside
) -> None:
    limits = replace(LIMITS, wall_s=SLEEPS_S) if "wall" in program.ends else LIMITS
    end = await Sandbox(limits, isolation=isolation).run(
        ["python3", "-I", "-c", outside.code(program)], stdin=b"x" * 300_000
    )
    written = end.stdout + end.stderr
    assert b"ESCAPED" not in end.stdout, written
    assert b"SECRET" not in written
    assert outside.canary.read_text() == "unharmed"
    assert outside.survivors() == []
    assert (end.limit or "") in program.ends.split() or (not end.limit and not program.ends), end
    assert len(written) <= LIMITS.output_kb << 10


@needs_bubblewrap
@pytest.mark.parametrize("what", IN_THE_KERNEL)
async def test_memory_that_the_kernel_keeps_for_a_program_counts(what: str) -> None:
    limits = Limits(wall_s=120.0, cpu_s=60.0, memory_mb=30, processes=32, disk_mb=32)
    code = IN_THE_KERNEL[what]
    end = await Sandbox(limits, isolation="bubblewrap").run(["python3", "-I", "-c", code])
    assert end.limit == "memory", (end, end.stderr)


@needs_bubblewrap
async def test_a_few_files_sockets_and_pages_are_no_memory_to_speak_of() -> None:
    code = """
import asyncio, os
for number in range(1000): open(f"/tmp/{number}", "w").close()
async def main(): await asyncio.create_subprocess_exec("true")
asyncio.run(main())
"""
    end = await Sandbox(Limits(wall_s=120.0, memory_mb=30), isolation="bubblewrap").run(
        ["python3", "-c", code]
    )
    assert end.ok, end


async def test_no_daemon_outlives_one_of_many_runs_beside_each_other(outside: Outside) -> None:
    """A list of processes may miss one whose parent ends while the list is made."""
    (daemon,) = (one for one in HOSTILE if one.name == "leaves_a_daemon")
    command = ["python3", "-I", "-c", outside.code(daemon)]
    sandbox = Sandbox(LIMITS, isolation="rlimits")
    for _ in range(6):
        await asyncio.gather(*(sandbox.run(command) for _ in range(8)))
    assert outside.survivors() == []
