"""Fixtures and rules that hold for every test."""

import gc
import signal

import pytest
from hypothesis import HealthCheck, settings

# As Hypothesis itself does in CI: a machine that is busy fails no test, and every run tries the same examples.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

FIRST = (
    "tests/launch/",
    "tests/loop/",
    "tests/rollout/",
    "tests/backends/",
    "tests/gateway/sampling/",
)
"""Folders of long modules, longest first: begun last, one would go on while other workers are idle."""

# A shell makes its background jobs, and so what they start, deaf to Ctrl-C. Tests send it to processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        found = (i for i, folder in enumerate(FIRST) if item.nodeid.startswith(folder))
        return next(found, len(FIRST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and collected tests stay: a full collection need not look at them
