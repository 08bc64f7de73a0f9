"""`areal-sdk eval`: the measurement of a model, of a run's weights, or of any endpoint."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from areal_sdk.agent import AgentLike, RolloutWorkflow
from areal_sdk.config import Config, without_nodes
from areal_sdk.environment import Environment
from areal_sdk.errors import ConfigError
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.evaluation.evaluator import play_held_out
from areal_sdk.loop.evaluation.kept import keep_evaluation
from areal_sdk.loop.plan.models import FoundModel, find_served_model, whose_weights
from areal_sdk.loop.plan.overlap import trained_on
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.plan.tasks import load_held_out
from areal_sdk.loop.services.opening import open_services
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.process.user_code import load_user_object
from areal_sdk.rollout.agents.adapters import AgentInForm
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.endpoint import EndpointRunner
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.pool import AgentPool, playable
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.rollout.tasks import PlaysEpisodes
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.live.view import EvalView
from areal_sdk.types import Episode


@dataclass(frozen=True, slots=True)
class RemoteEndpoint:
    """An OpenAI-compatible endpoint of somebody else."""

    base_url: str
    api_key: str = field(repr=False)


async def run_evaluation(
    config: Config,
    program: Program,
    *,
    plugins: Plugins,
    split: str,
    view: EvalView,
    endpoint: RemoteEndpoint | None = None,
    record: bool = False,
) -> EvalReport:
    """Evaluate `program` on `config.model`, or against `endpoint`. `record` keeps the episodes in a run directory,
    which the report names."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(view)
        held_out = load_held_out(
            config,
            split,
            source=config.eval_tasks or config.tasks,
            program=program,
            plugins=plugins,
            say=view.say,
        )
        if endpoint is None:  # before the run has a directory, since there may be no such model
            compare = partial(trained_on, config, held_out, split, program=program, plugins=plugins)
            if told := await in_thread(compare, name="compare tasks"):
                view.say(told)
            view.enter(f"starting: the engine loads {config.model}")
            find = partial(find_served_model, config, plugins=plugins)
            found = await in_thread(find, name="find model")
            opened = _runner_on_model(config, program, split, view, plugins, found)
        else:
            opened = _runner_on_endpoint(config, program, split, view, endpoint)
        kept = None
        if record:
            kept = stack.enter_context(keep_evaluation(config, program, plugins, split=split))
            program.keep_output(kept.run_dir.logs)
        runner = await stack.enter_async_context(opened)
        if kept is not None:
            kept.begin(program.name)

        def evaluated(episode: Episode) -> None:
            view.evaluated(episode)
            if kept is not None:
                kept.evaluated(episode)

        temperature = config.eval.sampling_temperature if endpoint is None else None
        view.begin(len(held_out.tasks) * config.eval.samples, temperature=temperature)
        report = await play_held_out(
            runner, held_out, config.eval, split=split, on_episode=evaluated
        )
        if endpoint is not None:
            report = replace(report, num_uncalled=0)  # an endpoint records no turns
        if kept is None:
            return report
        kept.report(report)
        return replace(report, run_dir=str(kept.run_dir.path))


@asynccontextmanager
async def _runner_on_model(
    config: Config,
    program: Program,
    split: str,
    view: EvalView,
    plugins: Plugins,
    model: FoundModel,
) -> AsyncIterator[PlaysEpisodes]:
    if whose := whose_weights(model.directory):
        view.inform(whose)
    with tempfile.TemporaryDirectory(prefix="areal-sdk-eval-") as scratch:
        async with open_services(
            config,
            program,
            model=model,
            plugins=plugins,
            run_dir=RunDir(Path(scratch)),
            say=view.say,
        ) as services:
            sampling = SamplingPolicy(temperature=config.eval.sampling_temperature)
            async with services.playing.runner(split=split, sampling=sampling) as runner:
                yield runner


@asynccontextmanager
async def _runner_on_endpoint(
    config: Config, program: Program, split: str, view: EvalView, endpoint: RemoteEndpoint
) -> AsyncIterator[PlaysEpisodes]:
    if config.rewards:
        raise ConfigError(
            "--base-url records no turns, so reward functions have nothing to look at: "
            "let the agent return its own verdict"
        )
    if takes_tokens(program.agent):
        raise ConfigError(
            f"{program.name} is played token by token, and --base-url gives only text: evaluate it on "
            "a model that we serve (--model), or write an Agent whose client uses context.base_url"
        )
    for line in without_nodes(
        config, "with --base-url another server samples, and this process plays"
    ):
        view.say(line)
    _tell_temperature(config, view)
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-sdk-eval-"))
        agent = playable(program.agent, config.rollout, log_dir=Path(scratch))
        if isinstance(agent, AgentPool):
            await stack.enter_async_context(agent)
        if isinstance(agent, CommandAgent):
            stack.push_async_callback(agent.aclose)
        runner = EndpointRunner(
            config, agent, split=split, base_url=endpoint.base_url, api_key=endpoint.api_key
        )
        yield await stack.enter_async_context(runner)


def _tell_temperature(config: Config, view: EvalView) -> None:
    """Say that the agent or the endpoint decides the temperature, since requests go directly to the endpoint."""
    if (asked := config.eval.temperature) is not None:
        view.say(
            f"eval.temperature = {asked:g} changes nothing: with --base-url the temperature is that of the "
            "agent's requests, else the endpoint's default"
        )
        return
    view.inform(
        "temperature: that of the agent's requests, else the endpoint's default (a model that we serve is "
        f"evaluated at {config.eval.sampling_temperature:g})"
    )


def takes_tokens(agent: AgentLike | AgentSpec) -> bool:
    """Whether the agent needs a session of the gateway: a workflow, an environment, or a form that takes tokens."""
    if isinstance(agent, AgentSpec) and agent.is_isolated:
        return True  # only environments are isolated
    if isinstance(agent, AgentInForm):
        return agent.form.takes_tokens
    if isinstance(agent, AgentSpec) and agent.form:
        return bool(load_user_object(agent.form).takes_tokens)
    item = load_user_object(agent.reference) if isinstance(agent, AgentSpec) else agent
    cls = item if isinstance(item, type) else type(item)
    return issubclass(cls, (RolloutWorkflow, Environment))
