"""Evaluate a program: on a local model, on a run's weights, or on anybody's endpoint.

What `areal-sdk eval` shows until its table comes.
"""

import asyncio
import contextlib
import logging
import math
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from areal_sdk.agent import AgentLike, EpisodeContext, RolloutWorkflow
from areal_sdk.config import Config
from areal_sdk.environment import Environment
from areal_sdk.errors import AgentError, ConfigError, DeadlineError, EpisodeError, boundary
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.program import HeldOut, Program, load_held_out
from areal_sdk.loop.progress import HEARTBEAT_S, REFRESH_S, ToView
from areal_sdk.loop.services import open_rig
from areal_sdk.loop.weights import find_served_model, whose_weights
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.process.user_code import load_user_object
from areal_sdk.rollout.agents.adapters import agent_name, as_play, guard
from areal_sdk.rollout.agents.deadline import DeadlinePassedError, within
from areal_sdk.rollout.agents.http_client import SharesHttpClient
from areal_sdk.rollout.agents.pool import AgentPool, playable
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.rollout.tasks import EpisodeRequest, PlaysEpisodes, stable_seed
from areal_sdk.rollout.verdicts import read_verdict
from areal_sdk.telemetry import Rate, RunDir
from areal_sdk.telemetry.terminal import RunStatus, TerminalView, clock, still_line
from areal_sdk.types import Episode, Outcome

logger = logging.getLogger(__name__)

NUM_LINES = 10
"""Where nothing is repainted: an evaluation of any size tells this much."""


class EvalView:
    """Counts the episodes of one evaluation, and paints inside `async with`; silent without writer."""

    def __init__(
        self, writer: TerminalView | None, *, name: str, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._writer = writer
        self._name = name
        self._heartbeat_s = heartbeat_s
        self._num_done = self._total = 0
        self._sampled = Rate()
        self._note = ""
        self._began = self._told_at = time.monotonic()
        self._playing_since: float | None = None
        self._painter: asyncio.Task[None] | None = None
        self._log_handler = ToView(self.say)

    async def __aenter__(self) -> Self:
        if self._writer is not None:
            logging.getLogger("areal_sdk").addHandler(self._log_handler)
            self._painter = asyncio.create_task(self._paint_on(self._writer), name="live view")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is None or self._painter is None:
            return
        self._painter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._painter
        if self._writer.repaints:
            self._writer.update(self._live())
        self._writer.close()
        logging.getLogger("areal_sdk").removeHandler(self._log_handler)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._told_at = time.monotonic()
        if self._writer is not None:
            self._writer.message(text)
        else:
            logger.warning("%s", text)

    def inform(self, text: str) -> None:
        """A line that stays, where somebody looks: it is no warning."""
        if self._writer is not None:
            self.say(text)

    def enter(self, phase: str) -> None:
        """What happens from now on, before the first episode."""
        self._note = phase
        if self._writer is not None and not self._writer.repaints:
            self.say(f"{phase}  {clock(time.monotonic() - self._began)}")

    def begin(self, total: int) -> None:
        """From here on `total` episodes are played."""
        self.enter(f"evaluating {self._name}: {total} episodes")
        self._note, self._total = "", total
        self._playing_since = time.monotonic()

    def evaluated(self, episode: Episode) -> None:
        self._num_done += 1
        self._sampled.add(sum(len(turn.output_tokens) for turn in episode.turns))
        is_due = self._num_done % math.ceil(self._total / NUM_LINES) == 0
        if self._writer is not None and not self._writer.repaints and is_due:
            self._writer.update(self._live())
            self._told_at = time.monotonic()

    async def _paint_on(self, writer: TerminalView) -> None:
        while True:
            if writer.repaints:
                writer.update(self._live())
            elif time.monotonic() - self._told_at >= self._heartbeat_s:
                self.say(still_line(self._live()))
            await asyncio.sleep(REFRESH_S)

    def _live(self) -> RunStatus:
        now = time.monotonic()
        return RunStatus(
            name=self._name,
            unit="episode",
            step=self._num_done,
            total_steps=self._total,
            elapsed_s=now - self._began,
            train_s=0.0 if self._playing_since is None else now - self._playing_since,
            sampled_per_s=self._sampled.per_second() or None,  # another's endpoint tells no tokens
            note=self._note,
        )


async def run_evaluation(
    config: Config,
    program: Program,
    *,
    plugins: Plugins,
    split: str,
    view: EvalView,
    base_url: str | None = None,
    api_key: str | None = None,
) -> EvalReport:
    async with view:
        held_out = load_held_out(
            config,
            split,
            source=config.eval_tasks or config.tasks,
            program=program,
            plugins=plugins,
            say=view.say,
        )
        if base_url is None:
            return await _on_model(config, program, held_out, split, view, plugins)
        key = api_key or "none"
        return await _on_endpoint(config, program, held_out, split, view, base_url, key)


async def _on_model(
    config: Config,
    program: Program,
    held_out: HeldOut,
    split: str,
    view: EvalView,
    plugins: Plugins,
) -> EvalReport:
    view.enter(f"starting: the engine loads {config.model}")
    model_dir = await in_thread(
        lambda: find_served_model(config, plugins=plugins), name="find model"
    )
    if whose := whose_weights(model_dir):
        view.inform(whose)
    with tempfile.TemporaryDirectory(prefix="areal-sdk-eval-") as scratch:
        async with open_rig(
            config,
            program,
            model_dir=model_dir,
            plugins=plugins,
            run_dir=RunDir(Path(scratch)),
            train=False,
            say=view.say,
        ) as rig:
            sampling = SamplingPolicy(temperature=config.eval.sampling_temperature)
            async with rig.runner(split=split, sampling=sampling) as runner:
                return await _measure(config, runner, held_out, split, view)


async def _on_endpoint(
    config: Config,
    program: Program,
    held_out: HeldOut,
    split: str,
    view: EvalView,
    url: str,
    api_key: str,
) -> EvalReport:
    if config.rewards:
        raise ConfigError(
            "--base-url records no turns, so reward functions have nothing to look at: "
            "let the agent return its own verdict"
        )
    if _takes_tokens(program.agent):
        raise ConfigError(
            f"{program.name} is played token by token, and --base-url gives only text: evaluate it on "
            "a model that we serve (--model), or write an Agent whose client uses context.base_url"
        )
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-sdk-eval-"))
        agent = playable(program.agent, config.rollout, log_dir=Path(scratch))
        if isinstance(agent, AgentPool):
            await stack.enter_async_context(agent)
        runner = await stack.enter_async_context(
            EndpointRunner(config, agent, split=split, base_url=url, api_key=api_key)
        )
        return await _measure(config, runner, held_out, split, view)


async def _measure(
    config: Config, runner: PlaysEpisodes, held_out: HeldOut, split: str, view: EvalView
) -> EvalReport:
    view.begin(len(held_out.tasks) * config.eval.samples)
    return await evaluate_tasks(
        runner,
        held_out.tasks,
        split=split,
        samples=config.eval.samples,
        max_concurrency=config.eval.max_concurrency,
        on_episode=view.evaluated,
        num_available=held_out.num_available,
    )


def _takes_tokens(agent: AgentLike | AgentSpec) -> bool:
    """Whether it is a workflow or an environment, which the session of a gateway of ours plays."""
    item = load_user_object(agent.reference) if isinstance(agent, AgentSpec) else agent
    cls = item if isinstance(item, type) else type(item)
    return issubclass(cls, (RolloutWorkflow, Environment)) or hasattr(cls, "arun_episode")


async def _no_tokens(*_: object, **__: object) -> NoReturn:
    raise AgentError(
        "context.generate needs a model that we serve; with --base-url use a client, "
        "pointed at context.base_url"
    )


class EndpointRunner(SharesHttpClient):
    """Plays against an endpoint that is not ours: no sessions, no tokens, only verdicts."""

    def __init__(
        self, config: Config, agent: AgentLike, *, split: str, base_url: str, api_key: str
    ) -> None:
        super().__init__(for_gateway=False)
        self._config = config
        self._name = agent_name(agent)
        self._play = as_play(agent)
        self._split = split
        self._base_url = base_url
        self._api_key = api_key

    async def run(self, request: EpisodeRequest) -> Episode:
        seed = stable_seed(self._config.run.seed, request.task.id, request.epoch, request.sibling)
        context = EpisodeContext(
            base_url=self._base_url,
            api_key=self._api_key,
            model=self._config.model,
            episode_id=request.id,
            seed=seed,
            split=self._split,
            http_client=self._http_client,
            session_generate=_no_tokens,
            session_turns=tuple,
        )
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            outcome = await self._verdict(request, context)
        except EpisodeError as error:
            outcome = Outcome.failed(error.kind, self._told(error), trace=error.trace)
        return Episode(
            request.id,
            request.task,
            (),
            outcome,
            group=request.group,
            sibling=request.sibling,
            duration_s=clock() - began,
        )

    def _told(self, error: EpisodeError) -> str:
        """The client's own words for an endpoint that nobody answers at do not say which."""
        is_unreachable = "APIConnectionError" in str(error)
        return f"{error} Nobody answers at {self._base_url}" if is_unreachable else str(error)

    async def _verdict(self, request: EpisodeRequest, context: EpisodeContext) -> Outcome:
        what = f"agent {self._name}"
        empty = Episode(request.id, request.task, (), Outcome.abstained())
        async with boundary(AgentError, what):
            try:
                limit_s = self._config.rollout.episode_timeout_s
                played = await within(guard(self._play, request.task, context), limit_s, what=what)
            except DeadlinePassedError as exc:
                raise DeadlineError(str(exc)) from None
            return played.outcome if isinstance(played, Episode) else read_verdict(played, empty)
