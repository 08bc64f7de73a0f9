"""The device as torch knows it. `install` comes before everything else."""

from functools import cache
from typing import Any

import torch

from tests.pretended import autocast, build, operators
from tests.pretended.operators import NAME
from tests.pretended.runtime import make_module


@cache
def install() -> None:
    """Register the device and `torch.pretended`. Once a process."""
    untyped: Any = torch
    untyped.ops.load_library(build.library())
    untyped.utils.rename_privateuse1_backend(NAME)
    untyped._register_device_module(NAME, make_module())
    operators.register()
    autocast.register()
    # So that a module that comes here keeps its parameters, and tied ones stay tied, as on the way to CUDA.
    torch.__future__.set_swap_module_params_on_conversion(True)
