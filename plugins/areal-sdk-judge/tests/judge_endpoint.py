"""A judge's endpoint on loopback: a real HTTP server with the answers of a test."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

Answer = Callable[[str], str | int]
"""Function from a prompt to a reply's text, or to the status of an error."""


class Endpoint:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.prompts: list[str] = []
        self.keys: set[str] = set()
        self.limits: set[int] = set()
        self.url = ""
        self.num_at_once = 0
        self.finish_reason: str | None = "stop"
        """None leaves it out."""
        self.together: asyncio.Barrier | None = None
        """Holds requests until so many are there."""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _complete(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        prompt = body["messages"][0]["content"]
        self.prompts.append(prompt)
        self.limits.add(body["max_tokens"])
        self.keys.add(request.headers["Authorization"])
        if self.together is not None:
            await self.together.wait()
        said = self.answer(prompt)
        if isinstance(said, int):
            error = {"error": {"message": "no"}}
            return web.json_response(error, status=said, headers={"retry-after-ms": "1"})
        message = {"role": "assistant", "content": said}
        choice: dict[str, Any] = {"index": 0, "message": message}
        if self.finish_reason is not None:
            choice["finish_reason"] = self.finish_reason
        return web.json_response(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        )
