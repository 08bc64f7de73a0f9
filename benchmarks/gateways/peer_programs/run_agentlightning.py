"""agent-lightning's proxy: its default middlewares and callbacks (they record tokens and spans), an
in-memory store in the same process, one worker. Sessions are rollouts of the store, told by URL.
"""

import argparse
import asyncio
import os

os.environ |= {  # of the litellm inside, as in `run_litellm.py`
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}

from agentlightning import InMemoryLightningStore, LLMProxy
from seats import announce, parser, wait_for_end


async def serve(options: argparse.Namespace) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    backend = {"model": "openai/m", "api_base": f"{options.upstream}/v1", "api_key": "none"}
    proxy = LLMProxy(
        store=store,
        host="127.0.0.1",
        model_list=[{"model_name": "m", "litellm_params": backend}],
        launch_mode="thread",
    )
    await proxy.start()
    seats = []
    for number in range(options.sessions):
        rollout = await store.start_rollout(input=number)
        place = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
        seats.append((f"{place.endpoint}/v1", ""))
    announce(seats)
    await asyncio.to_thread(wait_for_end)
    await proxy.stop()


if __name__ == "__main__":
    asyncio.run(serve(parser(__doc__).parse_args()))
