"""Fixtures and rules that hold for every test."""

import gc
import os
import signal
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# As Hypothesis itself does in CI: a machine that is busy fails no test, and every run tries the same examples.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# Tests run beside each other; a run would take all cores but one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FIRST = (
    "tests/launch/",
    "tests/loop/",
    "tests/rollout/",
    "tests/backends/",
    "tests/gateway/sampling/",
    "tests/fsdp/",
    "plugins/",
)
"""Folders of long modules, longest first: begun last, one would go on while other workers are idle."""

ONE_SERVER = {
    f"tests/backends/sglang/test_{name}.py" for name in ("connecting", "faults", "server")
}
"""Modules whose tests share a real server, which takes longer to start than all of them to run."""

# A shell makes its background jobs, and so what they start, deaf to Ctrl-C. Tests send it to processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        found = (i for i, folder in enumerate(FIRST) if item.nodeid.startswith(folder))
        return next(found, len(FIRST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the modules of `ONE_SERVER` to one process."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return "one server" if module in ONE_SERVER else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test where CI is late: one that does not end in its time checks nothing."""
    until = float(os.environ.get("TESTS_UNTIL", "inf"))
    if item.get_closest_marker("long") and time.time() >= until:
        pytest.skip("CI is late on this machine")


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and collected tests stay: a full collection need not look at them
