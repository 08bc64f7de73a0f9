"""A headless Chromium, driven over the DevTools protocol."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "--window-size=1280,900", "about:blank"),
)
START_S = 60.0
"""Deadline of the browser's start on a busy machine."""
WAIT_S = 60.0
"""Deadline of one answer, and of a condition on the page."""
NAMED_KEYS: dict[str, dict[str, Any]] = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
}
"""Fields of a key, beside its name, without which a browser does not act on it."""
PROBLEMS = ("Runtime.exceptionThrown", "Log.entryAdded")


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Page:
    """One tab: its commands, and what went wrong in it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []
        """Exceptions, errors in the console, and what the policy of the page blocked."""
        self.requested: list[str] = []
        """Addresses of every request."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == self._number:
                    assert "error" not in message, message
                    found: dict[str, Any] = message["result"]
                    return found
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        is_console = method == "Runtime.consoleAPICalled" and parameters["type"] in (
            "error",
            "warning",
        )
        if method in PROBLEMS or is_console:
            self.problems.append(str(parameters))
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append("a dialog was opened: a script of the content ran")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true: a promise of the page checks it before each frame."""
        script = f"""new Promise((done, failed) => {{
            const end = Date.now() + {WAIT_S * 900};
            const check = () => ({condition}) ? done(true)
              : Date.now() > end ? failed(new Error(document.body.innerText.slice(0, 500))) : setTimeout(check, 20);
            check();
        }})"""
        await self.run(script)

    async def open(self, address: str) -> None:
        await self.call("Page.navigate", url=address)
        await self.until("document.body && document.body.dataset.ready")

    async def go(self, place: str) -> None:
        """Another place of the same page, shown to its end."""
        await self.run(f"document.body.dataset.ready = ''; location.hash = {place!r}")
        await self.until("document.body.dataset.ready")

    async def press(self, key: str) -> None:
        extra = {"text": key} if len(key) == 1 else NAMED_KEYS.get(key, {})
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **extra)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def text(self) -> str:
        return str(await self.run("document.body.innerText"))


@asynccontextmanager
async def opened_browser(browser: str, profile: Path) -> AsyncIterator[Page]:
    """A page of a new browser, which is killed at the end with all its processes."""
    process = await asyncio.create_subprocess_exec(
        browser,
        f"--user-data-dir={profile}",
        *OPTIONS,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(START_S):
            address = await _devtools(process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json") as response:
                tabs = await response.json(content_type=None)
            async with session.ws_connect(
                tabs[0]["webSocketDebuggerUrl"], max_msg_size=0
            ) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _devtools(process: asyncio.subprocess.Process) -> str:
    """Host and port that the browser says it listens on."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b"DevTools listening on" in line:
            return line.decode().split("ws://")[1].split("/")[0]
    raise AssertionError("the browser ended before it listened")
