"""AReaL's proxy rollout server, with its own uvicorn settings: it renders, encodes and records tokens.

The engine is inside and answers at once, as in ours, so that no call upstream counts against it.
Warnings about defaults are off. Sessions are started by its admin routes and told apart by key.
"""

import argparse
import asyncio
import os
import socket

os.environ |= {"AREAL_PROXY_WARN_ONCE": "1", "HF_HUB_OFFLINE": "1"}

import uvicorn
from areal.api import ModelRequest, ModelResponse
from areal.api.cli_args import AgentConfig, InferenceEngineConfig
from areal.experimental.openai.proxy import proxy_rollout_server as proxy
from areal.experimental.openai.proxy.server import StartSessionRequest
from areal.utils.hf_utils import load_hf_tokenizer
from seats import announce, parser, wait_for_end

NUM_TOKENS = 32
MOST_TOKENS = 32768


class InstantEngine:
    """The engine that AReaL asks for here: `agenerate`, and the configuration that it was made
    with."""

    def __init__(self, model: str) -> None:
        agent = AgentConfig(agent_cls_path="none", engine_max_tokens=MOST_TOKENS)
        self.config = InferenceEngineConfig(tokenizer_path=model, agent=agent)
        tokenizer = load_hf_tokenizer(model)
        said = tokenizer.encode("The answer is not clear. " * 20)[: NUM_TOKENS - 1]
        self._said = [*said, tokenizer.eos_token_id]

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=list(self._said),
            output_logprobs=[-1.0] * NUM_TOKENS,
            output_versions=[0] * NUM_TOKENS,
            stop_reason="stop",
            tokenizer=request.tokenizer,
        )


async def serve(options: argparse.Namespace) -> None:
    proxy._server_host = "127.0.0.1"
    proxy._engine = InstantEngine(options.model)
    proxy._setup_openai_client()
    server = uvicorn.Server(
        uvicorn.Config(
            proxy.app,
            log_level="warning",
            timeout_keep_alive=300,
            access_log=False,
        )
    )
    keys = []
    for number in range(options.sessions):
        proxy.grant_capacity()
        session = proxy.start_session(StartSessionRequest(task_id=f"task-{number}"))
        keys.append(session.api_key)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    serving = asyncio.create_task(server.serve([listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    announce((url, key) for key in keys)  # it listens: who calls early is answered when it is up
    await asyncio.to_thread(wait_for_end)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(serve(parser(__doc__).parse_args()))
