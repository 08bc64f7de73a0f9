"""The embedded engine passes the conformance check that we give to others."""

from pathlib import Path

import pytest

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.models import resolve_model
from areal_sdk.testing import check_engine


@pytest.mark.slow
@pytest.mark.parametrize("is_deterministic", [False, True])
async def test_the_local_engine_keeps_the_engine_contract(
    tmp_path: Path, is_deterministic: bool
) -> None:
    engine = LocalEngine(
        resolve_model("tiny"),
        log_dir=tmp_path,
        options=LocalOptions(dtype="float32", deterministic=is_deterministic),
    )
    await check_engine(engine, timeout_s=120)
