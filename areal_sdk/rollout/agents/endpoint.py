"""Plays an agent against an endpoint of somebody else: no sessions and no tokens, only verdicts."""

import asyncio
import contextlib
from typing import NoReturn
from urllib.parse import urlsplit

from areal_sdk.agent import AgentLike, EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import AgentError, DeadlineError, EpisodeError, boundary
from areal_sdk.rollout.agents.adapters import as_play, guard
from areal_sdk.rollout.agents.agent_errors import agent_name, agent_title, with_advice
from areal_sdk.rollout.agents.command import silence
from areal_sdk.rollout.agents.deadline import DeadlinePassedError, within
from areal_sdk.rollout.agents.http_client import SharesHttpClient
from areal_sdk.rollout.judging.verdicts import read_verdict
from areal_sdk.rollout.tasks import EpisodeRequest, seed_of_agent, stable_seed
from areal_sdk.types import Episode, ErrorKind, Outcome, Task

CONNECT_S = 5.0
"""Seconds after which an endpoint that takes no connection counts as down."""


class EndpointRunner(SharesHttpClient):
    """Plays requests with one agent, whose client gets the address and the key of the endpoint."""

    def __init__(
        self, config: Config, agent: AgentLike, *, split: str, base_url: str, api_key: str
    ) -> None:
        super().__init__(for_gateway=False)
        self._config = config
        self._name = agent_name(agent)
        self._play = as_play(agent)
        self._silence = silence(agent, "--base-url asks no reward function")
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
            seed=seed_of_agent(seed),
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
            outcome = await self._failed(error, request.task)
        return Episode(
            request.id,
            request.task,
            (),
            outcome,
            group=request.group,
            sibling=request.sibling,
            duration_s=clock() - began,
        )

    async def _failed(self, error: EpisodeError, task: Task) -> Outcome:
        """The outcome of an episode that failed at this endpoint. If the endpoint is down, this is an infrastructure fault
        and no error of the agent, even if its client says so."""
        kind, message = error.kind, with_advice(str(error), task, has_called=True)
        says_so = "connect" in f"{error} {error.trace}".lower()
        if kind is ErrorKind.AGENT and says_so and not await _answers(self._base_url):
            kind = ErrorKind.INFRASTRUCTURE
        if kind is ErrorKind.INFRASTRUCTURE and says_so:
            message = f"nobody answers at {self._base_url}: {error}"
        return Outcome.failed(kind, message, trace=error.trace)

    async def _verdict(self, request: EpisodeRequest, context: EpisodeContext) -> Outcome:
        what = agent_title(self._name)
        empty = Episode(request.id, request.task, (), Outcome.abstained())
        async with boundary(AgentError, what):
            try:
                limit_s = self._config.rollout.episode_timeout_s
                playing = guard(self._play, request.task, context, turnstile=self._turnstile)
                played = await within(playing, limit_s, what=what)
            except DeadlinePassedError as exc:
                raise DeadlineError(str(exc)) from None
            if played is None:
                return Outcome.abstained(self._silence)
            return played.outcome if isinstance(played, Episode) else read_verdict(played, empty)


async def _answers(base_url: str) -> bool:
    """Whether a server takes connections at this address."""
    address = urlsplit(base_url)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address.hostname, port)
    except OSError:  # also a TimeoutError
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def _no_tokens(*_: object, **__: object) -> NoReturn:
    raise AgentError(
        "context.generate needs a model that we serve; with --base-url use a client, "
        "pointed at context.base_url"
    )
