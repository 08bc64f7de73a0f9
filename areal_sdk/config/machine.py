"""The dtype in which this machine computes fast, and the threads it has for it. Both are read from the kernel, since the
main process has no torch."""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output

CPUINFO = Path("/proc/cpuinfo")
TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with two numbers, in microseconds: the processor time that a container may use in a period, and the period."""
GPU_DEVICES = tuple(map(Path, ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")))
"""Device files of NVIDIA, of AMD, and of a GPU under WSL."""
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags that tell of bfloat16: of Intel and AMD, of Intel's matrix units, of Arm."""
_FIRST_WITH_BFLOAT16 = 8.0
"""The compute capability of NVIDIA's first GPUs with bfloat16, Ampere."""


def bfloat16_is_slow(device: str) -> bool:
    """Whether `device` of this machine is a CPU, or a GPU, that has no instructions for bfloat16."""
    return not (has_bfloat16() if computes_on_cpu(device) else gpus_have_bfloat16())


def computes_on_cpu(device: str) -> bool:
    """Whether `device` of this machine is a CPU."""
    return device == "cpu" or (device == "auto" and not has_gpu())


def threads_for(num_processes: int) -> int:
    """The threads of each of `num_processes` that compute at once. One core is left to the main process and to agents: an
    operation waits for the slowest of its threads, so that one late thread makes all of them late."""
    if (told := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        return max(1, int(told))
    return max(1, (num_cores() - 1) // num_processes)


@cache
def num_cores() -> int:
    """The number of cores that this process may use. Two threads of a core share its arithmetic, so they count once."""
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    try:
        cores = len({Path(TOPOLOGY.format(number)).read_text() for number in usable})
    except OSError:
        cores = len(usable)
    with suppress(OSError, ValueError):  # without a quota the file says "max"
        time, period = map(int, QUOTA.read_text().split())
        cores = min(cores, time // period)
    return max(1, cores)


def has_gpu() -> bool:
    """Whether torch would probably find a GPU; asked without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in ("", "-1") and any(path.exists() for path in GPU_DEVICES)


@cache
def gpus_have_bfloat16() -> bool:
    """Whether all GPUs that this process sees have instructions for bfloat16; true where that is not known. V100 and T4
    have none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        asked += [f"--id={visible}"] if visible else []
        told = check_output(asked, stderr=DEVNULL, timeout=30)
        return all(float(capability) >= _FIRST_WITH_BFLOAT16 for capability in told.split())
    except (OSError, SubprocessError, ValueError):
        return True


@cache
def has_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU has instructions for bfloat16; true where that is not known."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    for line in lines:
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not BFLOAT16_FLAGS.isdisjoint(words.split())
    return True
