from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from view_browser import Page, find_browser, opened_browser
from view_runs import TOKEN, write_run

from areal_sdk_view.server import make_app, start

TIMEOUT = aiohttp.ClientTimeout(total=30)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with two finished runs."""
    root = tmp_path / "runs"
    write_run(root, "guess-1")
    write_run(root, "guess-2")
    return root


@pytest.fixture
async def address(runs: Path) -> AsyncIterator[str]:
    """A server of these runs: its address without the token."""
    runner, address = await start(make_app([runs], token=TOKEN), at=0, token=TOKEN)
    yield address.partition("/?")[0]
    await runner.cleanup()


@pytest.fixture
async def client(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(address, headers=headers, timeout=TIMEOUT) as session:
        yield session


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium here to show the pages")
    async with opened_browser(browser, tmp_path / "profile") as page:
        yield page
