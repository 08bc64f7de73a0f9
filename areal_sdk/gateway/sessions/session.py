"""A session: one episode's view of the policy, and the only place where its turns are recorded."""

import asyncio
import random
import re
import secrets
import string
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import (
    ApiError,
    SessionClosedError,
    limit_reached,
    session_closed,
)
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.sessions.history import History, side_calls
from areal_sdk.gateway.sessions.incremental_json import IncrementalBody
from areal_sdk.gateway.sessions.notes import Notes
from areal_sdk.gateway.sessions.posted_rewards import PostedReward, PostedRewards
from areal_sdk.gateway.sessions.recall import Recall
from areal_sdk.gateway.sessions.replies import AbandonedReply, KeptReplies, SessionReplies
from areal_sdk.types import Exclusion, Message, Tool, Turn

_ID_ALPHABET = string.ascii_letters + string.digits

_NOT_IN_URLS = re.compile(r"[^A-Za-z0-9._-]+")

_UNSEEDED = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of one episode. To reach a limit is an outcome (`truncated`), not an error."""

    max_turns: int | None = None
    max_tokens: int | None = None
    """Maximum number of sampled tokens in all turns together."""
    max_new_tokens: int | None = None
    """Maximum number of sampled tokens in one turn, whatever the client asks for."""


class TurnSampler(Protocol):
    """The sampler of a session's turns."""

    async def complete(self, session: "Session", request: ChatRequest) -> Turn:
        """Sample and record one turn."""
        ...


class Session:
    """One episode. Clients reach it by `base_url` or by `key`; its turns are recorded here."""

    def __init__(
        self,
        session_id: str,
        *,
        completer: TurnSampler,
        on_close: Callable[["Session"], None],
        replies: KeptReplies,
        limits: SessionLimits,
        sampling: SamplingPolicy,
        seed: int | None,
        split: str,
        recall: Recall | None = None,
        mark: str = "",
    ) -> None:
        """`mark` is the part of made-up names that tells which process owns the session."""
        self.id = session_id
        self.key = f"sk-{mark}{secrets.token_urlsafe(24)}"
        self.slug = f"{_NOT_IN_URLS.sub('-', session_id)[:64]}~{mark}{secrets.token_hex(8)}"
        """Names the session in a URL; unguessable, since some clients send no key of their own."""
        self.limits = limits
        self.sampling = sampling
        self.split = split
        self.body = IncrementalBody()
        """The body of the latest request."""
        self.notes = Notes()
        self.replies = SessionReplies(replies, self.slug)
        self.placing = asyncio.Lock()
        """A lock that is held while a request is placed in `history`, which may take a thread."""
        self.raw_inputs: dict[str, str] = {}
        """Malformed arguments of custom tools, which take one text, by the id of the call. Clients got the arguments
        unchanged."""
        self.opened_at = time.monotonic()
        self._mark = mark
        self._completer = completer
        self._on_close = on_close
        self._seed = seed
        self.recall = recall
        """The answers that a resumed episode had before, and the record of further ones."""
        ids = seed if recall is None else recall.seed
        self._ids = _UNSEEDED if ids is None else random.Random(ids)
        self._num_requests = 0
        self._turns: list[Turn] = []
        self._latest_prompt: tuple[int, ...] = ()
        """Prompt of the latest turn. The next request nearly always goes on from the tokens of that turn."""
        self._num_sampled = 0
        self._excluded: Counter[Exclusion] = Counter()
        self._posted = PostedRewards()
        self._is_truncated = False
        self._oldest_version: int | None = None
        self._histories: defaultdict[str, History] = defaultdict(History)
        self._sampling: dict[Callable[[], None], Callable[[], None] | None] = {}
        """Completions that are being sampled: the function that ends each -> the one that hands over its beginning."""
        self._refusal: Callable[[], ApiError] = session_closed
        self._closed = False

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns recorded so far. Read only: `record` adds to it."""
        return self._turns

    @property
    def excluded(self) -> Mapping[Exclusion, int]:
        """Sampled tokens kept as context only, by reason."""
        return self._excluded

    @property
    def rewards(self) -> Sequence[PostedReward]:
        """Posted rewards in order. A later one replaces an earlier one for the same turn or episode."""
        return self._posted.all

    @property
    def faults(self) -> Sequence[str]:
        return self.notes.faults

    @property
    def notices(self) -> Sequence[str]:
        return self.notes.notices

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.notes.metadata

    @property
    def truncated(self) -> bool:
        """Whether a turn, token or context limit cut the episode short."""
        return self._is_truncated

    @property
    def oldest_version(self) -> int | None:
        """The version that sampled the session's first token, whose turn may still be in flight; None before."""
        return self._oldest_version

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def num_sampled(self) -> int:
        return self._num_sampled

    def history_of(self, policy: str = "") -> History:
        """The conversations with a policy. Turns of another policy are no part of them, except as text in a prompt."""
        return self._histories[policy]

    def base_url(self, gateway_base: str) -> str:
        """This session's own address below the gateway's `http://host:port/v1`."""
        return f"{gateway_base.removesuffix('/v1')}/s/{self.slug}/v1"

    async def generate(
        self,
        prompt: Sequence[Message] | Sequence[int],
        *,
        tools: Sequence[Tool] = (),
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        policy: str = "",
    ) -> Turn:
        """Sample one turn without HTTP, from messages or from token ids taken as they are."""
        if not prompt:
            raise ConfigError("the prompt is empty: pass at least one message or token")
        prompt = deepcopy(prompt)  # agents change their messages in place; what was said stands
        asked = {} if temperature is None else {"temperature": float(temperature)}
        request = ChatRequest(
            tools=tuple(tools),
            max_new_tokens=max_new_tokens,
            stop=tuple(stop),
            stop_tokens=tuple(stop_tokens),
            sampling=asked,
            policy=policy,
        ).with_prompt(prompt)
        return await self._completer.complete(self, request)

    def admit(self) -> int | None:
        """The number of tokens that a new turn may sample (None: no limit). Raises if none are left."""
        if self._closed:
            raise self.refusal()
        limits = self.limits
        if limits.max_turns is not None and len(self._turns) >= limits.max_turns:
            self.cut_short()
            raise limit_reached(f"{limits.max_turns} turns")
        allowed = limits.max_new_tokens
        if limits.max_tokens is not None:
            left = limits.max_tokens - self._num_sampled
            if left <= 0:
                self.cut_short()
                raise limit_reached(f"{limits.max_tokens} sampled tokens")
            allowed = left if allowed is None else min(allowed, left)
        return allowed

    @contextmanager
    def sampling_until(
        self, stop: Callable[[], None], *, leave: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Call `stop` if the session is closed within this block, or at once if it is closed already. Before that,
        `leave` hands over the delivered part of the completion."""
        self._sampling[stop] = leave
        if self._closed:
            stop()
        try:
            yield
        finally:
            self._sampling.pop(stop, None)

    def cut_short(self) -> None:
        """Note that a limit ends the episode. That is an outcome, not an error."""
        self._is_truncated = True

    def sampled_under(self, version: int) -> None:
        """Note that a token of this version was sampled for the session."""
        if self._oldest_version is None:
            self._oldest_version = version

    def refusal(self) -> ApiError:
        """The error of requests that come, or still run, when the session is closed."""
        return self._refusal()

    def refuse_with(self, refusal: Callable[[], ApiError]) -> None:
        self._refusal = refusal

    def leave_verdict_to(self, judge: str) -> None:
        """Let `judge` alone judge the episode, and refuse rewards that are posted; if it has no name, allow them."""
        self._posted.leave_to(judge)

    def next_seed(self) -> int | None:
        """A seed for the next completion, derived from the session's own; None without one."""
        if self._seed is None:
            return None
        self._num_requests += 1
        digest = blake2b(f"{self._seed}/{self._num_requests}".encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big")

    def new_reply_id(self, prefix: str, *, num_bytes: int = 12) -> str:
        """An id for a reply."""
        return f"{prefix}{self._mark}{secrets.token_hex(num_bytes)}"

    def new_call_id(self, length: int) -> str:
        """An id for a tool call; the same in every run of a seeded session, since templates show it."""
        prefix = "call_" if length > 9 else ""
        return prefix + "".join(self._ids.choices(_ID_ALPHABET, k=length - len(prefix)))

    def tokens_of(self, index: int) -> tuple[int, ...]:
        """All tokens of a recorded turn."""
        turn = self._turns[index]
        if index == len(self._turns) - 1 and len(self._latest_prompt) == turn.num_prompt:
            return self._latest_prompt + turn.output_tokens
        return turn.tokens

    def record(self, turn: Turn, *, prompt: tuple[int, ...] = ()) -> int:
        """Add a turn, and return its index. Turns are added nowhere else, and never after `close`. `prompt` is all of
        `turn.prompt_tokens`, if the caller has them."""
        if self._closed:
            raise SessionClosedError(f"session {self.id} is closed")
        self._turns.append(turn)
        self._latest_prompt = prompt
        self._num_sampled += len(turn.output_tokens)
        if turn.excluded is not None:
            self._excluded[turn.excluded] += len(turn.output_tokens)
        return len(self._turns) - 1

    def answered(self, digest: bytes, reply: bytes, *, num_retries: int) -> None:
        """Note that a request body got its whole answer. The faults that its earlier attempts met are forgotten."""
        self.notes.forgive(digest, num_retries=num_retries)
        self.replies.keep(digest, reply)

    def leave(self, left: AbandonedReply) -> None:
        """Keep a reply whose client left. The next request makes the reply a turn, unless that request is a retry."""
        if not self._closed:
            self.replies.leave(left)

    def begin_attempt(self, digest: bytes, *, num_retries: int) -> None:
        """Note that a request comes. Abandoned replies become turns, unless they answer earlier attempts at it."""
        self.replies.asked_again(digest, num_retries=num_retries)
        self.replies.record_left()

    def post_reward(
        self, reward: float, *, turn: int | str | None = None, choice: int | None = None
    ) -> PostedReward:
        """Keep a verdict. `turn` is the index of a turn, or the id of the reply that became this turn.

        `choice` is the number of the rewarded choice, for a reply with several.
        """
        self._posted.check(reward, turn, choice)
        self.replies.record_left()
        return self._posted.add(
            reward, turn, choice, replies=self.replies, num_turns=len(self._turns)
        )

    def _exclude_side_calls(self) -> None:
        for index in side_calls(self._turns):
            turn = self._turns[index]
            if turn.excluded is None:
                self._turns[index] = replace(turn, excluded=Exclusion.SIDE_CALL)
                self._excluded[Exclusion.SIDE_CALL] += len(turn.output_tokens)

    def close(self, *, keeps_streams: bool = False) -> tuple[Turn, ...]:
        """End the session and return its turns, final now. Safe to call twice.

        A completion that is being sampled is aborted; its client gets `refusal`. With `keeps_streams`, its delivered
        part becomes a turn.
        """
        if not self._closed:
            for leave in list(self._sampling.values()):
                if keeps_streams and leave is not None:
                    leave()
            self.replies.record_left()
            self._closed = True
            if not self.sampling.trains_side_calls:
                self._exclude_side_calls()
            self._histories.clear()
            self.body = IncrementalBody()
            self._latest_prompt = ()
            self._on_close(self)
            for stop in list(self._sampling):
                stop()  # what is sampled too late belongs to nobody: free its slot
        return tuple(self._turns)
