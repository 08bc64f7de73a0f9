"""What holds for every test."""

import gc
import signal

import pytest

FIRST = ("tests/loop/", "tests/backends/", "tests/rollout/", "tests/gateway/sampling/")
"""Folders of long modules. Begun last, one of them would run on while all other workers are idle."""

# A shell makes its background jobs, and so what they start, deaf to Ctrl-C. Tests send it to processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and collected tests stay: a full collection need not look at them
