"""A core of the local engine, and prompts for it."""

from pathlib import Path

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore


def make_core(checkpoint: Path, **options: object) -> EngineCore:
    return EngineCore(checkpoint, LocalOptions(**{"kv_memory_gb": 0.1, **options}))  # type: ignore[arg-type]


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(3 + (salt * 31 + i * i * 7 + i) % 290 for i in range(length))
