"""`train` and `evaluate` where an event loop runs already, as in a notebook or a server.

    summary = await areal_sdk.aio.train(MyAgent, model="smollm2", tasks=tasks)

Both take the arguments of `areal_sdk.train` and `areal_sdk.evaluate`. A training run that is cancelled
saves what it has learnt, as Ctrl-C does.
"""

from areal_sdk.loop.api import evaluate_async as evaluate
from areal_sdk.loop.api import train_async as train

__all__ = ["evaluate", "train"]
