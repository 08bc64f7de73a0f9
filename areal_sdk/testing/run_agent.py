"""`run_agent`: one episode of an agent, through the real gateway, on scripted or real tokens."""

import inspect
import itertools
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.agent import AgentLike
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway import Gateway, SamplingPolicy, SessionLimits
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models import resolve_model
from areal_sdk.plugins import load_plugins
from areal_sdk.plugins.forms import is_of_the_core
from areal_sdk.reward import RewardFn
from areal_sdk.rollout.agents.agent_errors import agent_name
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.agents.spec import make_agent
from areal_sdk.rollout.judging.verdicts import read_verdict
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.testing.scripted_engine import Script, ScriptedEngine
from areal_sdk.types import Episode, OutcomeKind, Task


async def run_agent(
    agent: "AgentLike | type[Any]",
    task: Task | Mapping[str, Any],
    *,
    engine: InferenceEngine | Script,
    reward: RewardFn | None = None,
    model_dir: Path | None = None,
    max_turns: int | None = None,
    temperature: float = 1.0,
    timeout_s: float = 60.0,
) -> Episode:
    """Play one episode as a run would: HTTP, sessions, limits and verdict included.

    `agent` is anything that `areal-sdk train` takes, an environment's class included. `engine` is a
    script (see `ScriptedEngine`) or an engine, started here and closed here. `reward` scores the
    episode if the agent does not; it is called right here, so that its exceptions reach the test.
    """
    model_dir = model_dir or resolve_model("tiny")
    if not isinstance(engine, InferenceEngine):
        engine = ScriptedEngine(engine, model_dir=model_dir)
    if not isinstance(task, Task):
        task = Task("task", task)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        await engine.start()
        gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="test-model")
        stack.push_async_callback(gateway.aclose)
        await gateway.start()
        runner = await stack.enter_async_context(
            EpisodeRunner(
                as_agent(agent),
                gateway=gateway,
                limits=SessionLimits(max_turns=max_turns),
                sampling=SamplingPolicy(temperature=temperature),
                episode_timeout_s=timeout_s,
                infra_retries=0,
            )
        )
        episode = await runner.run(EpisodeRequest(f"test-{next(_numbers)}", task))
    if reward is None or episode.outcome.kind is not OutcomeKind.ABSTAIN:
        return episode
    verdict = reward(episode)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return replace(episode, outcome=read_verdict(verdict, episode))


def as_agent(agent: "AgentLike | type[Any]") -> AgentLike:
    """An agent as `areal-sdk train` makes it, with the defaults of its options."""
    form = None
    if not is_of_the_core(agent):
        forms = load_plugins().agent_forms
        form = forms.get(found) if (found := forms.find(agent)) else None
    name = agent.__name__ if inspect.isclass(agent) else agent_name(agent)
    return make_agent(agent, name=name, options={}, form=form)


_numbers = itertools.count()
