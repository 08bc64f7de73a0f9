"""verifiers' interception server: one process, one session a rollout, told apart by key.

`--client eval` passes calls on to a chat endpoint and records their text; `--client train` renders,
encodes, asks vLLM's route for tokens and records them. Sessions are made as its rollouts make them.
"""

import argparse
import asyncio

from seats import announce, parser, wait_for_end
from verifiers.v1.clients import EvalClientConfig, ModelContext, TrainClientConfig
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask


def client(options: argparse.Namespace) -> EvalClientConfig | TrainClientConfig:
    where = {"base_url": f"{options.upstream}/v1", "api_key_var": "NO_KEY"}
    if options.client == "eval":
        return EvalClientConfig(**where)
    return TrainClientConfig(**where, renderer_model_name=options.model)


async def serve(options: argparse.Namespace) -> None:
    context = ModelContext("m", client(options))
    async with InterceptionServer() as server:
        seats = []
        for _ in range(options.sessions):
            task = TraceTask(type="Task", data=TaskData())
            trace = Trace(task=task, agent=AgentInfo(config=AgentConfig()))
            key, _ = server.register(RolloutSession(ctx=context, trace=trace))
            seats.append((f"{server.base_url}/v1", key))
        announce(seats)
        await asyncio.to_thread(wait_for_end)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--client", choices=("eval", "train"), required=True)
    asyncio.run(serve(options.parse_args()))


if __name__ == "__main__":
    main()
