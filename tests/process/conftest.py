"""Fixtures of the process tests."""

import pytest

from tests.toolbox.processes import children_of_this_process


@pytest.fixture
def others() -> set[str]:
    """Children that other tests' libraries keep, such as torch's shared-memory manager."""
    return children_of_this_process()
