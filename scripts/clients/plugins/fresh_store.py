"""pytest plugin: what other people's tests expect to be stored is stored again before each of them."""

import os
import urllib.request

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    with urllib.request.urlopen(os.environ["FRESH_STORE_URL"], timeout=10):
        pass
