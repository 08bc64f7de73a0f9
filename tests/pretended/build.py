"""The compiled part of the device: made once for each torch, by whichever process comes first."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("device.cpp")
PLACE = Path(__file__).parents[2] / "build" / "pretended"


def compiler() -> str | None:
    """The C++ compiler, if this machine has one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def library() -> Path:
    """The compiled part. It takes about six seconds of CPU if it is not there yet."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    built = PLACE / f"{key}.so"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(built)
    return built


def _compile(target: Path) -> None:
    command = compiler()
    assert command is not None, "the caller asks `compiler` first"
    of_torch = Path(torch.__file__).parent
    partial = target.with_suffix(".partial")
    done = subprocess.run(
        [
            *(command, "-std=c++20", "-O0", "-fPIC", "-shared", str(SOURCE), "-o", str(partial)),
            *(f"-isystem{of_torch / 'include'}", f"-L{of_torch / 'lib'}"),
            *(f"-Wl,-rpath,{of_torch / 'lib'}", "-ltorch_cpu", "-lc10"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{SOURCE.name} does not compile against torch {torch.__version__}:\n{done.stderr[-4000:]}"
        )
    partial.replace(target)
