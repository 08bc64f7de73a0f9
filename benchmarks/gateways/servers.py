"""Servers that the benchmark starts itself, over one trivial engine: 32 tokens, at once.

    python benchmarks/gateways/servers.py ROLE --model DIR --sessions N [--upstream URL]

Prints the seats of its sessions as one line of JSON, and serves until its input ends.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web
from answers import NUM_TOKENS, Answers, Words
from tokenizers.decoders import DecodeStream

from areal_sdk.backends.remote.client import Attempt
from areal_sdk.engine import EngineInfo, GenerateChunk, GenerateRequest, InferenceEngine
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.routes import BackendSettings
from areal_sdk.types import FinishReason, WeightUpdate
from areal_sdk_sglang.client import SGLangClient
from areal_sdk_upstream.backend import UpstreamBackend

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Seats = list[tuple[str, str]]
"""Address and key of each session."""


class InstantEngine(InferenceEngine):
    """Says the same tokens to everybody, one chunk a token, without delay."""

    def __init__(self, model_dir: Path) -> None:
        self.words = Words(model_dir)
        self._info = EngineInfo(
            str(model_dir),
            32768,
            self.words.tokenizer.get_vocab_size(),
            stop_tokens=(self.words.end,),
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def version(self) -> int:
        return 0

    async def start(self) -> None: ...

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        *said, end = self.words.tokens
        for token in said:
            yield GenerateChunk((token,), (-1.0,), (0,))
        yield GenerateChunk((end,), (-1.0,), (0,), FinishReason.STOP, end)

    async def update_weights(self, update: WeightUpdate) -> None: ...

    async def aclose(self) -> None: ...


class RemoteEngine(InstantEngine):
    """The same tokens from the upstream, by the client and the protocol of the SGLang engine."""

    def __init__(self, model_dir: Path, upstream: str) -> None:
        super().__init__(model_dir)
        self._address = upstream
        self._num_requests = 0

    async def start(self) -> None:
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._client = SGLangClient(self._address, http)  # open until the process ends

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        self._num_requests += 1
        attempt = Attempt(
            request,
            (),
            str(self._num_requests),
            submitted_version=0,
            version_of=lambda label: 0,
        )
        async with aclosing(self._client.generate(attempt)) as deltas:
            async for delta in deltas:
                if delta.tokens or delta.finish_reason is not None:
                    yield delta.chunk()


async def serve_gateway(options: argparse.Namespace) -> Seats:
    """Serve our gateway, with the engine inside."""
    return await _seats(InstantEngine(options.model), options)


async def serve_remote(options: argparse.Namespace) -> Seats:
    """Serve our gateway, in front of a server that answers as SGLang's does."""
    engine = RemoteEngine(options.model, options.upstream)
    await engine.start()
    return await _seats(engine, options)


async def _seats(engine: InferenceEngine, options: argparse.Namespace) -> Seats:
    gateway = Gateway(engine, renderer=Renderer.load(options.model), model_name="m")
    await gateway.start()
    sessions = [gateway.sessions.open(str(i)) for i in range(options.sessions)]
    return [(session.base_url(gateway.base_url), "") for session in sessions]


async def serve_passing(options: argparse.Namespace) -> Seats:
    """Serve our gateway as it passes calls on to the upstream and records their text: `serve
    --upstream`."""
    gateway = BackendGateway(
        UpstreamBackend(BackendSettings(f"{options.upstream}/v1", api_key="none"))
    )
    await gateway.start()
    sessions = [gateway.sessions.open(str(i)) for i in range(options.sessions)]
    return [(session.base_url(gateway.base_url), "") for session in sessions]


async def serve_bound(options: argparse.Namespace) -> Seats:
    """Renders, encodes the whole prompt, detokenises, and remembers nothing."""
    engine = InstantEngine(options.model)
    tokenizer = engine.words.tokenizer
    template = ChatTemplate.load(options.model)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        text = template.render(body["messages"], add_generation_prompt=True)
        prompt = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        decoder = DecodeStream(skip_special_tokens=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        said: list[str] = []
        async for chunk in engine.stream(GenerateRequest(prompt, NUM_TOKENS)):
            text = decoder.step(tokenizer, chunk.tokens[0]) or ""
            if body["stream"]:
                if not response.prepared:
                    await response.prepare(request)
                delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
                await response.write(b"data: " + orjson.dumps(delta) + b"\n\n")
            said.append(text)
        if body["stream"]:
            await response.write(b"data: [DONE]\n\n")
            return response
        message = {"role": "assistant", "content": "".join(said)}
        return web.Response(body=orjson.dumps({"choices": [{"message": message}]}))

    return [(await _listen(answer), "")] * options.sessions


async def serve_echo(options: argparse.Namespace) -> Seats:
    """Parses the body and answers a constant."""
    message = {"role": "assistant", "content": "The answer is not clear. " * 6}
    answered = orjson.dumps({"choices": [{"message": message}]})

    async def answer(request: web.Request) -> web.StreamResponse:
        orjson.loads(await request.read())
        return web.Response(body=answered)

    return [(await _listen(answer), "")] * options.sessions


async def serve_upstream(options: argparse.Namespace) -> Seats:
    """Serve the upstream to which calls are forwarded: ready-made answers of the same tokens, in
    each protocol."""
    answers = Answers(Words(options.model))

    async def answer(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        if request.path == "/generate":
            return web.Response(body=answers.sglang, content_type="text/event-stream")
        if request.path == "/inference/v1/generate":
            return web.Response(body=answers.vllm, content_type="application/json")
        if body.get("stream"):
            return web.Response(body=answers.streamed, content_type="text/event-stream")
        return web.Response(body=answers.whole, content_type="application/json")

    return [(await _listen(answer), "")] * options.sessions


async def _listen(answer: Handler) -> str:
    app = web.Application(client_max_size=2**25)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


ROLES = {
    "gateway": serve_gateway,
    "remote": serve_remote,
    "passing": serve_passing,
    "bound": serve_bound,
    "echo": serve_echo,
    "upstream": serve_upstream,
}


async def serve(options: argparse.Namespace) -> None:
    sys.stdout.write(json.dumps(await ROLES[options.role](options)) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--upstream", default="")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
