"""`train` and `evaluate` for code in which an event loop runs already, such as a notebook or a server.

    summary = await areal_sdk.aio.train(MyAgent, model="smollm2", tasks=tasks)

Both take the arguments of `areal_sdk.train` and `areal_sdk.evaluate`.
"""

from pathlib import Path
from typing import Any

from areal_sdk.errors import cause_of
from areal_sdk.loop.api import endpoint_at, plan_evaluation, plan_training
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.loop.plan.given import TasksLike, read_call
from areal_sdk.loop.runs import Training, begun
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry.live.watchdog import Watchdog

__all__ = ["evaluate", "train"]


async def train(
    agent: object = None,
    *,
    model: str | None = None,
    tasks: TasksLike | None = None,
    eval_tasks: TasksLike | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunSummary:
    """`areal_sdk.train` in the event loop that runs already, as in a notebook.

    A cancelled run saves what it has learnt, as Ctrl-C does, before `CancelledError` comes back.
    """
    given = {"train": tasks, "eval": eval_tasks}
    training = await in_thread(  # finding a model may take long
        lambda: plan_training(
            agent, settings, model=model, tasks=given, resume=resume, quiet=quiet
        ),
        name="plan of the run",
    )
    while isinstance(training, Training):
        with begun(training) as run:
            async with Watchdog():
                run.summary = await run.main()
        if run.loss is None:
            return run.whole_summary
        training = await in_thread(run.rest, name="plan of the run")
    return training


async def evaluate(
    agent: object = None,
    *,
    model: str = "smollm2",
    tasks: TasksLike | None = None,
    split: str = "eval",
    base_url: str | None = None,
    api_key: str | None = None,
    record: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> EvalReport:
    """`areal_sdk.evaluate` in the event loop that runs already, as in a notebook."""
    evaluation = await in_thread(
        lambda: plan_evaluation(
            read_call(agent, {"model": model, **settings}, {split: tasks}),
            split,
            endpoint=endpoint_at(base_url, api_key),
            record=record,
            quiet=quiet,
        ),
        name="plan of the evaluation",
    )
    try:
        async with Watchdog():
            return await evaluation
    except ExceptionGroup as group:
        raise cause_of(group) from group
