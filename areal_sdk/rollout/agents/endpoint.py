"""Plays an agent against an endpoint of somebody else: no sessions and no tokens, only verdicts."""

import asyncio
from typing import NoReturn

from areal_sdk.agent import AgentLike, EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import AgentError, DeadlineError, EpisodeError, boundary
from areal_sdk.rollout.agents.adapters import agent_name, as_play, guard
from areal_sdk.rollout.agents.deadline import DeadlinePassedError, within
from areal_sdk.rollout.agents.http_client import SharesHttpClient
from areal_sdk.rollout.tasks import EpisodeRequest, stable_seed
from areal_sdk.rollout.verdicts import read_verdict
from areal_sdk.types import Episode, Outcome


class EndpointRunner(SharesHttpClient):
    """Plays requests with one agent, whose client gets the address and the key of the endpoint."""

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
        self._turnstile = asyncio.Lock()

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
                playing = guard(self._play, request.task, context, turnstile=self._turnstile)
                played = await within(playing, limit_s, what=what)
            except DeadlinePassedError as exc:
                raise DeadlineError(str(exc)) from None
            return played.outcome if isinstance(played, Episode) else read_verdict(played, empty)


async def _no_tokens(*_: object, **__: object) -> NoReturn:
    raise AgentError(
        "context.generate needs a model that we serve; with --base-url use a client, "
        "pointed at context.base_url"
    )
