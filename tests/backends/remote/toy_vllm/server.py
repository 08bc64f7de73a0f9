"""A small inference server over HTTP with routes and names of its own; real tokens, through torch.

python server.py MODEL_DIR PORT [HOST]

It takes as long to start as there is the file that TOY_HOLD names (a large model takes minutes), and cannot start
if `die` stands there. If `update` does, new weights take so long.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from areal_sdk.backends.local import LocalEngine, LocalOptions
from areal_sdk.engine import GenerateRequest, Sampling
from areal_sdk.types import WeightUpdate

NEVER_TAGGED = "checkpoint"
HOLD = Path(os.environ.get("TOY_HOLD", "/nowhere"))


class ToyServer:
    def __init__(self, model_dir: Path, log_dir: Path) -> None:
        self._model_dir = model_dir
        self._engine = LocalEngine(
            model_dir, log_dir=log_dir, options=LocalOptions(kv_memory_gb=0.1, max_slots=16)
        )
        self._tags = [NEVER_TAGGED]
        """Tags by revision: each update of weights or tag is one."""
        self._running: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application()
        app.cleanup_ctx.append(self._run)
        app.add_routes(
            [
                web.post("/inference/v1/generate", self.generate),
                web.post("/ping_sampler", self.ping),
                web.post("/score", self.score),
                web.post("/abort_requests", self.abort),
                web.post("/hold", self.hold),
                web.post("/go_on", self.go_on),
                web.post("/weights/tag", self.update),
                web.post("/weights/reload", self.update),
                web.get("/weights", self.weights),
                web.get("/v1/models", self.models),
            ]
        )
        return app

    async def _run(self, app: web.Application) -> AsyncIterator[None]:
        await self._engine.start()
        yield
        await self._engine.aclose()

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        sampling = body["sampling"]
        biases = {int(token): bias for token, bias in sampling["logit_bias"].items()}
        body["sampling"] = Sampling(**sampling | {"logit_bias": biases})
        body |= {name: tuple(body[name]) for name in ("tokens", "stop", "stop_tokens")}
        asked = GenerateRequest(**body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._running.add(asked.request_id)
        try:
            async with aclosing(self._engine.stream(asked)) as chunks:
                async for chunk in chunks:
                    event: dict[str, Any] = {
                        "token_ids": chunk.tokens,
                        "logprobs": chunk.logprobs,
                        "weight_tags": [self._tags[revision] for revision in chunk.versions],
                        "top_logprobs": chunk.top_logprobs,
                        "finish_reason": chunk.finish_reason,
                        "stop_reason": chunk.stop_matched,
                        "cached_tokens": chunk.num_cached,
                    }
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        finally:
            self._running.discard(asked.request_id)
        return response

    async def ping(self, request: web.Request) -> web.Response:
        await self._engine.generate(GenerateRequest((0,), 1, Sampling(temperature=0.0)))
        return web.json_response({})

    async def score(self, request: web.Request) -> web.Response:
        body = await request.json()
        asked = GenerateRequest(tuple(body["token_ids"]), 1, Sampling(temperature=0.0))
        everything = replace(asked, num_top_logprobs=self._engine.info.vocab_size)
        result = await self._engine.generate(everything)
        logprobs = [result.top_logprobs[0][token] for token in body["of"]]
        return web.json_response({"logprobs": logprobs, "cached_tokens": result.num_cached})

    async def abort(self, request: web.Request) -> web.Response:
        for request_id in tuple(self._running):
            await self._engine.abort(request_id)
        return web.json_response({})

    async def hold(self, request: web.Request) -> web.Response:
        await self._engine.pause()
        return web.json_response({})

    async def go_on(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return web.json_response({})

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "path" in body:
            await asyncio.to_thread(wait_in_update, HOLD)
        self._tags.append(body["tag"])
        update = WeightUpdate(len(self._tags) - 1, body.get("path"))
        await self._engine.update_weights(update)
        return web.json_response({})

    async def weights(self, request: web.Request) -> web.Response:
        return web.json_response({"tag": self._tags[-1]})

    async def models(self, request: web.Request) -> web.Response:
        context = self._engine.info.max_context
        model = {"id": self._model_dir.name, "dtype": "float32", "max_model_len": context}
        return web.json_response({"data": [model]})


async def main(model_dir: Path, port: int, host: str = "127.0.0.1") -> None:
    with tempfile.TemporaryDirectory() as logs:
        runner = web.AppRunner(ToyServer(model_dir, Path(logs)).app(), handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()


def wait_for_leave_to_start(hold: Path) -> None:
    while hold.exists():
        if hold.read_text(encoding="utf-8") == "die":
            sys.exit("it cannot start")
        time.sleep(0.05)


def wait_in_update(hold: Path) -> None:
    while hold.exists() and hold.read_text(encoding="utf-8") == "update":
        hold.with_name("in-update").touch()
        time.sleep(0.05)


if __name__ == "__main__":
    wait_for_leave_to_start(HOLD)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
