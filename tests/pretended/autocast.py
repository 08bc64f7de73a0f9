"""Autocast of the device: which operators compute in half precision and which in float32, as on CUDA."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tests.pretended.operators import NAME, new_library

KEY = "AutocastPrivateUse1"


def register() -> None:
    """Take torch's own lists, which are in a header."""
    new_library("_").fallback(torch.library.fallthrough_kernel, KEY)
    own = new_library("aten")
    for operators, target in (
        ("LOWER_PRECISION_FP", None),
        ("FP32", torch.float32),
        ("FP32_SET_OPT_DTYPE", torch.float32),
    ):
        for name in sorted(_listed(operators)):
            base, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            own.impl(operator, partial(_cast, operator, target), KEY)


def _listed(operators: str) -> set[str]:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8").replace("\\\n", " ")
    [line] = re.findall(rf"#define AT_FORALL_{operators}\(_\)(.*)", text)
    entries = [found.split(",") for found in re.findall(r"_\(([^)]*)\)", line)]
    return {".".join(part.strip() for part in entry) for entry in entries}


def _cast(operator: OpOverload, target: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    dtype = target or torch.get_autocast_dtype(NAME)

    def cast(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [cast(item) for item in value]
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float and value.dtype is not torch.float64 else value

    with torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))
    ):
        return operator(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})
