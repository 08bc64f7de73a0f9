"""Distillation: a teacher plays an agent's tasks, and its well rewarded episodes become the data of a student.

The gateway stands in front of the teacher's endpoint, so each episode has a session of its own: the
turns of the teacher are recorded as text, and rewards are given as in any evaluation.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from areal_sdk.config import Config
from areal_sdk.gateway import SessionLimits
from areal_sdk.gateway.backend_gateway import BackendGateway
from areal_sdk.loop.plan.parts import reward_specs
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.services.players import open_rewards
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.agents.workers.pool import AgentPool, playable
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.routes import Backend
from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.types import Episode, Task

SPLIT = "train"

logger = logging.getLogger(__name__)


async def play_teacher(
    config: Config,
    program: Program,
    tasks: Sequence[Task],
    *,
    backend: Backend,
    model: str,
    samples: int,
    run_dir: RunDir,
    plugins: Plugins,
    on_episode: Callable[[Episode], None],
) -> EvalReport:
    """Play `tasks` on `model` of the teacher's endpoint, and keep every episode in `run_dir`."""
    rollout = config.rollout
    async with AsyncExitStack() as stack:
        writer = EpisodeWriter(
            run_dir.episodes, keep_bytes=config.run.keep_bytes, say=logger.warning
        )
        stack.callback(writer.close)
        gateway = BackendGateway(backend, model_name=model)
        stack.push_async_callback(gateway.aclose)
        await gateway.start()
        program.keep_output(run_dir.logs)
        agent = playable(program.agent, rollout, log_dir=run_dir.logs)
        if isinstance(agent, AgentPool):
            await stack.enter_async_context(agent)
        runner = EpisodeRunner(
            agent,
            gateway=gateway,
            rewards=await open_rewards(reward_specs(config, plugins), rollout, run_dir.logs, stack),
            limits=SessionLimits(
                max_turns=rollout.max_turns,
                max_tokens=rollout.max_episode_tokens,
                max_new_tokens=rollout.max_new_tokens,
            ),
            seed=config.run.seed,
            split=SPLIT,
            episode_timeout_s=rollout.episode_timeout_s,
            infra_retries=rollout.infra_retries,
        )

        def keep(episode: Episode) -> None:
            writer.write(episode, split=SPLIT)
            on_episode(episode)

        return await evaluate_tasks(
            await stack.enter_async_context(runner),
            tasks,
            split=SPLIT,
            samples=samples,
            max_concurrency=config.eval.max_concurrency,
            name="teacher",
            on_episode=keep,
        )
