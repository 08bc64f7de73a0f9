"""The dtype in which this machine computes fast. It is read from the kernel, since the main process has no torch."""

import os
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, SubprocessError, check_output

CPUINFO = Path("/proc/cpuinfo")
GPU_DEVICES = tuple(map(Path, ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")))
"""Device files of NVIDIA, of AMD, and of a GPU under WSL."""
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags for bfloat16: of Intel and AMD, of Intel's matrix units, of Arm."""
_FIRST_WITH_BFLOAT16 = 8.0
"""The compute capability of NVIDIA's first GPUs with bfloat16, Ampere."""


def bfloat16_is_slow(device: str) -> bool:
    """Whether `device` of this machine is a CPU, or a GPU, that has no instructions for bfloat16."""
    is_cpu = device == "cpu" or (device == "auto" and not has_gpu())
    return not (has_bfloat16() if is_cpu else gpus_have_bfloat16())


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
