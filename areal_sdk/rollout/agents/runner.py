"""Plays one attempt at one task with an agent. Every result and every failure is an `Episode`.

The agent plays inside an error boundary and a deadline, against a session of the gateway. The
session says whether the infrastructure failed: user code may have caught the exception.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from areal_sdk.agent import AgentLike, EpisodeContext
from areal_sdk.errors import AgentError, DeadlineError, EpisodeError, boundary
from areal_sdk.gateway.errors import CONTEXT_OVERFLOW
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.sessions.posted_rewards import PostedReward
from areal_sdk.gateway.sessions.recall import Recall
from areal_sdk.gateway.sessions.session import Session, SessionLimits
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.agents.adapters import PlayResult, as_play, guard
from areal_sdk.rollout.agents.agent_errors import (
    agent_name,
    agent_title,
    unconnected_is_infrastructure,
    with_advice,
)
from areal_sdk.rollout.agents.command import CommandAgent, silence
from areal_sdk.rollout.agents.deadline import DeadlinePassedError, within
from areal_sdk.rollout.agents.environment import EnvironmentAgent
from areal_sdk.rollout.agents.http_client import SharesHttpClient
from areal_sdk.rollout.agents.workers.pool import AgentPool
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.rollout.judging.verdicts import (
    by_completion,
    posted_for,
    posted_outcome,
    read_verdict,
    with_posted,
)
from areal_sdk.rollout.tasks import EpisodeRequest, seed_of_agent, stable_seed
from areal_sdk.rollout.trajectory import (
    as_recorded,
    check_parents,
    oldest_trainable,
)
from areal_sdk.telemetry.journal import EpisodeKey, Journal
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind, recorded_indices

logger = logging.getLogger(__name__)

_SIGNS_OF_CONTEXT = (CONTEXT_OVERFLOW, "maximum context length")
"""Words by which an agent's error shows that a prompt was too long, whatever client the agent uses."""

UNSCORED = Outcome.abstained("not scored yet")


class HostsSessions(Protocol):
    """A gateway in front of a model that this run serves, or in front of another provider."""

    sessions: SessionStore
    model_name: str

    @property
    def base_url(self) -> str: ...


class EpisodeRunner(SharesHttpClient):
    """Plays requests with one agent. Stateless between episodes, so many may run at once."""

    def __init__(
        self,
        agent: AgentLike,
        *,
        gateway: HostsSessions,
        rewards: RewardPool | None = None,
        limits: SessionLimits | None = None,
        sampling: SamplingPolicy | None = None,
        seed: int = 0,
        deterministic: bool = False,
        split: str = "train",
        episode_timeout_s: float = 600.0,
        infra_retries: int = 2,
        retry_delay_s: float = 0.5,
        on_agent_error: float | None = None,
        longer_context: str = "",
        journal: Journal | None = None,
    ) -> None:
        """`on_agent_error` is the reward of an episode whose agent raised; None: such an episode ends in an error.

        `longer_context` says how a user gets more context, if a setting decides it. The runner writes the answers of
        first attempts to `journal`, and reads from it the answers that an earlier process wrote.
        """
        super().__init__(is_needed=not isinstance(agent, (AgentPool, EnvironmentAgent)))
        self.name = agent_name(agent)
        self._play = as_play(agent)
        self._silence = silence(agent, "no reward is configured")
        self._output_hint = agent.output_hint if isinstance(agent, CommandAgent) else ""
        self._gateway = gateway
        self._rewards = rewards
        self._judges = ""
        """Words for the configured rewards if they alone judge. They do for a command: code of a model that it runs
        could print a verdict, or post a reward with the command's key."""
        if isinstance(agent, CommandAgent) and rewards is not None:
            self._judges = f"The configured rewards ({', '.join(rewards.names)})"
        self._limits = limits or SessionLimits()
        self._sampling = sampling
        self._seed = seed
        self._deterministic = deterministic
        self._split = split
        self._episode_timeout_s = episode_timeout_s
        self._infra_retries = infra_retries
        self._retry_delay_s = retry_delay_s
        self._on_agent_error = on_agent_error
        self._longer_context = longer_context
        self._journal = journal
        self._ages: dict[str, Callable[[], int | None]] = {}
        """Function of each running episode that returns the version of its first token."""
        self._warned: set[str] = set()
        self._turnstile = asyncio.Lock()
        """Lets one episode begin at a time. A first step often builds a client, which takes tens of
        milliseconds; between two beginnings the event loop serves the other episodes."""

    async def run(self, request: EpisodeRequest) -> Episode:
        """Play an episode. After an infrastructure fault it is tried again, as the same episode."""
        attempt = request.attempt
        while True:
            episode = await self._attempt(request, attempt)
            if (
                episode.outcome.error is not ErrorKind.INFRASTRUCTURE
                or attempt >= self._infra_retries
            ):
                return episode
            logger.info(
                "episode %s, attempt %d: %s; trying again",
                request.id,
                attempt,
                episode.outcome.message,
            )
            await asyncio.sleep(self._retry_delay_s * 2**attempt)
            attempt += 1

    def oldest_version(self, episode_id: str) -> int | None:
        """The version of the first token of an episode that is being played or scored.

        None if it has no token yet, or none that would be trained.
        """
        age = self._ages.get(episode_id)
        return age() if age is not None else None

    async def _attempt(self, request: EpisodeRequest, attempt: int) -> Episode:
        seed = stable_seed(self._seed, request.task.id, request.epoch, request.sibling)
        recall = await self._recall(request, seed) if attempt == 0 else None
        session = self._gateway.sessions.open(
            request.id if attempt == 0 else f"{request.id}~{attempt}",
            limits=self._limits,
            sampling=self._sampling,
            seed=seed if self._deterministic else None,
            split=self._split,
            recall=recall,
        )
        session.leave_verdict_to(self._judges)
        self._ages[request.id] = lambda: session.oldest_version
        try:
            episode = await self._play_and_judge(request, attempt, session, seed)
            return episode if recall is None else self._told_replay(episode, recall)
        finally:
            del self._ages[
                request.id
            ]  # not before the verdict: until then the trainer waits for the episode

    async def _recall(self, request: EpisodeRequest, seed: int) -> Recall | None:
        """The answers of the episode that the journal already has, and the function that adds to them; None without a journal."""
        if (journal := self._journal) is None:
            return None
        key = EpisodeKey(request.epoch, request.task.id, request.sibling)
        answers = []
        if journal.is_recorded(key):
            answers = await in_thread(lambda: journal.read(key), name=f"read {request.id}")
        return Recall(answers, keep=partial(journal.keep, key), seed=seed)

    def _told_replay(self, episode: Episode, recall: Recall) -> Episode:
        """The episode, with metrics that count its replayed answers if it had any recorded answers."""
        if not recall.num_recorded:
            return episode
        if recall.num_waiting:
            self._warn_once(
                f"left the record of episode {episode.id} after {recall.num_replayed} of {recall.num_recorded} "
                "answers, and went on live: its tools answered differently than before the run stopped "
                "(outcome/unused_turns counts such answers)",
                about="replay",
            )
        counts = {
            "replayed_turns": float(recall.num_replayed),
            "unused_turns": float(recall.num_waiting),
        }
        outcome = episode.outcome
        return replace(episode, outcome=replace(outcome, metrics={**outcome.metrics, **counts}))

    async def _play_and_judge(
        self, request: EpisodeRequest, attempt: int, session: Session, seed: int
    ) -> Episode:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            played = await self._play_guarded(request, self._context(request, session, seed))
        finally:
            turns = session.close()
        oldest = oldest_trainable(turns)
        self._ages[request.id] = lambda: oldest
        episode = Episode(
            id=request.id,
            task=request.task,
            turns=turns,
            outcome=UNSCORED,
            group=request.group,
            sibling=request.sibling,
            epoch=request.epoch,
            attempt=attempt,
            truncated=session.truncated,
            duration_s=clock() - began,
        )
        if session.faults:
            message = "; ".join(session.faults)
            return replace(episode, outcome=Outcome.failed(ErrorKind.INFRASTRUCTURE, message))
        try:
            return await self._judge(episode, played, session)
        except EpisodeError as error:
            message = with_advice(str(error), request.task, has_called=bool(turns))
            failed = Outcome.failed(error.kind, message, trace=error.trace)
            return replace(episode, outcome=failed)

    def _context(self, request: EpisodeRequest, session: Session, seed: int) -> EpisodeContext:
        return EpisodeContext(
            base_url=session.base_url(self._gateway.base_url),
            api_key=session.key,
            model=self._gateway.model_name,
            episode_id=request.id,
            seed=seed_of_agent(seed),
            split=self._split,
            http_client=self._http_client,
            session_generate=session.generate,
            session_turns=lambda: session.turns,
        )

    async def _play_guarded(
        self, request: EpisodeRequest, context: EpisodeContext
    ) -> PlayResult | EpisodeError:
        what = agent_title(self.name)
        try:
            async with boundary(AgentError, what):
                try:
                    playing = guard(self._play, request.task, context, turnstile=self._turnstile)
                    with unconnected_is_infrastructure(context.base_url, what):
                        return await within(playing, self._episode_timeout_s, what=what)
                except DeadlinePassedError as exc:
                    raise DeadlineError(
                        f"{exc}: raise rollout.episode_timeout_s if episodes take that long"
                        f"{self._output_hint}"
                    ) from None
        except EpisodeError as error:
            return error

    async def _judge(
        self, episode: Episode, played: PlayResult | EpisodeError, session: Session
    ) -> Episode:
        """The episode with its verdict. Raises `EpisodeError` if there is no verdict."""
        num_turns, posted = len(episode.turns), session.rewards
        if isinstance(played, EpisodeError):
            return replace(episode, outcome=await self._judge_error(episode, played, posted))
        async with boundary(AgentError, agent_title(self.name)):
            if isinstance(played, Episode):
                return _as_returned(played, episode, posted)
            if isinstance(played, Mapping):
                played = by_completion(played, session.replies.turns_of, num_turns=num_turns)
            if played is not None and self._judges:
                self._warn_once(
                    f"gives a verdict, which does not count. {self._judges} alone judge a command: print no "
                    "reward, or leave the reward functions out"
                )
            elif played is not None:
                self._warn_of_unused_rewards("returns its own reward", cure="return None")
                verdict = _named(read_verdict(played, episode))
                return replace(episode, outcome=with_posted(verdict, posted, num_turns=num_turns))
        if (outcome := posted_outcome(posted, num_turns=num_turns)) is not None:
            self._warn_of_unused_rewards("posts its own rewards", cure="post none")
            return replace(episode, outcome=outcome)
        return replace(episode, outcome=await self._score(episode))

    async def _judge_error(
        self, episode: Episode, error: EpisodeError, posted: Sequence[PostedReward]
    ) -> Outcome:
        if error.kind is not ErrorKind.AGENT:
            raise error
        given = posted_outcome(posted, num_turns=len(episode.turns))
        if episode.truncated and given is not None:
            return given  # the agent raised because a limit ended the episode
        if episode.truncated and self._rewards is not None:
            return await self._score(episode)
        if self._on_agent_error is not None:
            return self._punished(episode, error, posted)
        if episode.truncated:
            return Outcome.abstained(
                f"a limit ended it before the agent gave a verdict ({error}): {self._way_out(error)}"
            )
        raise error

    def _way_out(self, error: EpisodeError) -> str:
        """The cures for an episode that a limit ended."""
        cures = "catch the refusal in the agent, score with a reward function, or set rollout.on_agent_error"
        is_too_long = any(sign in str(error) for sign in _SIGNS_OF_CONTEXT)
        return f"{self._longer_context}, {cures}" if is_too_long and self._longer_context else cures

    def _punished(
        self, episode: Episode, error: EpisodeError, posted: Sequence[PostedReward]
    ) -> Outcome:
        """The verdict on an episode whose agent raised: the reward posted for the episode, else `rollout.on_agent_error`."""
        assert self._on_agent_error is not None, "only then an exception has a reward"
        num_turns = len(episode.turns)
        is_judged = any(reward.turn is None for reward in posted)
        given = posted_outcome(posted, num_turns=num_turns) if is_judged else None
        if given is None:
            reward = Outcome.scored(self._on_agent_error, success=False)
            given = with_posted(reward, posted, num_turns=num_turns)
        metrics = {**given.metrics, "agent_error": 1.0}
        return replace(given, metrics=metrics, message=str(error), trace=error.trace)

    async def _score(self, episode: Episode) -> Outcome:
        if self._rewards is None:
            return Outcome.abstained(f"{self._silence}, or name a reward function (--reward)")
        return await self._rewards.score(episode)

    def _warn_of_unused_rewards(self, what: str, *, cure: str) -> None:
        if self._rewards is not None:
            names = ", ".join(self._rewards.names)
            self._warn_once(
                f"{what}, so the configured rewards ({names}) are not asked: {cure} to use them"
            )

    def _warn_once(self, what: str, *, about: str = "verdict") -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning("%s %s", agent_title(self.name), what)


def _as_returned(returned: Episode, episode: Episode, posted: Sequence[PostedReward]) -> Episode:
    """The episode with the turns that a workflow chose, and the workflow's verdict."""
    chosen = recorded_indices(returned.turns, episode.turns)
    turns = as_recorded(returned.turns, [episode.turns[index] for index in chosen])
    check_parents(turns)
    verdict = _named(read_verdict(returned.outcome, returned))
    return replace(
        episode,
        turns=turns,
        outcome=with_posted(verdict, posted_for(chosen, posted), num_turns=len(turns)),
        truncated=returned.truncated or episode.truncated,
    )


def _named(outcome: Outcome) -> Outcome:
    """The outcome; an error without a kind becomes one of kind `agent`."""
    if outcome.kind is OutcomeKind.ERROR and outcome.error is None:
        return replace(outcome, error=ErrorKind.AGENT)
    return outcome
