"""The engine and the trainer of a run that a test starts."""

import pytest

from tests.loop.runs import SCRIPTED


@pytest.fixture(scope="session", params=["scripted", pytest.param("real", marks=pytest.mark.slow)])
def parts(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Arguments of `start_training`: `SCRIPTED` in the fast tests, and in the slow ones nothing."""
    return SCRIPTED if request.param == "scripted" else ()
