"""A session: one episode's view of the policy, and the only place where its turns are recorded."""

import asyncio
import random
import re
import secrets
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import (
    ApiError,
    SessionClosedError,
    bad_request,
    judged_elsewhere,
    limit_reached,
    session_closed,
)
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.sessions.history import History, side_calls
from areal_sdk.gateway.sessions.incremental_json import IncrementalBody
from areal_sdk.gateway.sessions.posted_rewards import PostedReward, check_reward, turn_of_choice
from areal_sdk.gateway.sessions.replies import AbandonedReplies, AbandonedReply, KeptReplies
from areal_sdk.types import Exclusion, Message, Tool, Turn

_ID_ALPHABET = string.ascii_letters + string.digits

_NOT_IN_URLS = re.compile(r"[^A-Za-z0-9._-]+")

_MAX_NOTICES = 100
_LONGEST_NOTICE = 1000
_MAX_METADATA = 64
_MAX_METADATA_BYTES = 16 * 1024
"""Largest size of one metadata field in bytes."""

_UNSEEDED = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of one episode. To reach a limit is an outcome (`truncated`), not an error."""

    max_turns: int | None = None
    max_tokens: int | None = None
    """Sampled tokens, all turns together."""
    max_new_tokens: int | None = None
    """Sampled tokens of one turn, whatever the client asks for."""


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
        self.history = History()
        self.body = IncrementalBody()
        """The body of the latest request."""
        self.faults: list[str] = []
        """Infrastructure faults. They decide the episode's error, whatever the agent raised."""
        self.notices: list[str] = []
        """Notices for the client: overridden parameters, malformed tool calls left as text."""
        self.placing = asyncio.Lock()
        """A lock that is held while a request is placed in `history`, which may take a thread."""
        self.metadata: dict[str, Any] = {}
        """Request fields without effect here, such as `user`: the latest value of each."""
        self.raw_inputs: dict[str, str] = {}
        """Malformed arguments of custom tools, which take one text, by the id of the call. Clients got them as they
        are."""
        self.truncated = False
        """A turn, token or context limit cut the episode short."""
        self.oldest_version: int | None = None
        """The version of the first token sampled for it, in a turn that may still be in flight."""
        self.rewards: list[PostedReward] = []
        """Posted rewards in order. A later one replaces an earlier one for the same turn or episode."""
        self.judged_by = ""
        """The only judge of the episode, if there is one. A reward that is posted is then refused."""
        self.turns_of_reply: dict[str, dict[int, int]] = {}
        """The index of the turn of each choice, by the id of the reply. Clients know no more than
        that id."""
        self.repeated_replies: set[str] = set()
        """Ids that another provider gave to several of its replies: they name none of them."""
        self.streaming: dict[str, asyncio.Event] = {}
        """Replies that are being streamed, by id; the event comes when one is over."""
        self.excluded: Counter[Exclusion] = Counter()
        """Sampled tokens kept as context only, by reason."""
        self.refusal: Callable[[], ApiError] = session_closed
        """Function that makes the error of requests that come, or still run, when the session is closed."""
        self._mark = mark
        self._replies = replies
        self._owed: Counter[bytes] = Counter()
        """Request bodies that met an error or lost their client, and were not sent again yet."""
        self._left = AbandonedReplies()
        self._completer = completer
        self._on_close = on_close
        self._seed = seed
        self._ids = _UNSEEDED if seed is None else random.Random(seed)
        self._faults_of: dict[bytes, list[tuple[int, str]]] = {}
        """The attempts at each request that met a fault, by the request's body: number of the
        attempt and fault."""
        self._turns: list[Turn] = []
        self._latest_prompt: tuple[int, ...] = ()
        """Prompt of the latest turn. The next request nearly always continues that turn."""
        self._num_sampled = 0
        self._num_requests = 0
        self._sampling: dict[Callable[[], None], Callable[[], None] | None] = {}
        """Completions that are being sampled: for each, the function that ends it, and the one that hands over its
        beginning."""
        self._closed = False
        self.opened_at = time.monotonic()

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns recorded so far. Read only: `record` adds to it."""
        return self._turns

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def num_sampled(self) -> int:
        return self._num_sampled

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
        ).with_prompt(prompt)
        return await self._completer.complete(self, request)

    def admit(self) -> int | None:
        """The number of tokens that a new turn may sample (None: no limit). Raises if none are left."""
        if self._closed:
            raise self.refusal()
        limits = self.limits
        if limits.max_turns is not None and len(self._turns) >= limits.max_turns:
            self.truncated = True
            raise limit_reached(f"{limits.max_turns} turns")
        allowed = limits.max_new_tokens
        if limits.max_tokens is not None:
            left = limits.max_tokens - self._num_sampled
            if left <= 0:
                self.truncated = True
                raise limit_reached(f"{limits.max_tokens} sampled tokens")
            allowed = left if allowed is None else min(allowed, left)
        return allowed

    @contextmanager
    def sampling_until(
        self, stop: Callable[[], None], *, leave: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Call `stop` if the session is closed within this block, or at once if it is closed already. Before that,
        `leave` hands over the delivered part of the completion.
        """
        self._sampling[stop] = leave
        if self._closed:
            stop()
        try:
            yield
        finally:
            self._sampling.pop(stop, None)

    @contextmanager
    def noting_faults(self) -> Iterator[None]:
        """Note the infrastructure fault of an error that is on its way to the client."""
        try:
            yield
        except ApiError as exc:
            if exc.fault is not None:
                self.faults.append(exc.fault)
            raise

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

    def may_forgive(self, fault: str, digest: bytes, *, num_retries: int) -> None:
        """Note that a fault is forgotten if a later attempt at the same request is answered. A fault in the middle of
        a stream never is, because half of the answer was read.
        """
        self._faults_of.setdefault(digest, []).append((num_retries, fault))

    def tokens_of(self, index: int) -> tuple[int, ...]:
        """All tokens of a recorded turn."""
        turn = self._turns[index]
        if index == len(self._turns) - 1 and len(self._latest_prompt) == turn.num_prompt:
            return self._latest_prompt + turn.output_tokens
        return turn.tokens

    def record(self, turn: Turn, *, prompt: tuple[int, ...] = ()) -> int:
        """Add a turn, and return its index. Turns are added nowhere else, and never after `close`. `prompt` is all of
        `turn.prompt_tokens`, if the caller has them.
        """
        if self._closed:
            raise SessionClosedError(f"session {self.id} is closed")
        self._turns.append(turn)
        self._latest_prompt = prompt
        self._num_sampled += len(turn.output_tokens)
        if turn.excluded is not None:
            self.excluded[turn.excluded] += len(turn.output_tokens)
        return len(self._turns) - 1

    def owe(self, digest: bytes) -> None:
        """Note that a request with this body got no answer, so that its retry does not get the answer of another
        request."""
        self._owed[digest] += 1

    def answered(self, digest: bytes, reply: bytes, *, num_retries: int) -> None:
        """Note that a request body got its whole answer, and keep the answer in case it is lost on the way. The
        faults that its earlier attempts met are forgotten: the SDK asked again, and no agent saw them. Each earlier
        attempt forgives one fault. Further faults under the same digest belong to other requests with an identical
        body.
        """
        met = self._faults_of.get(digest, [])
        for attempt, fault in dict(met).items():
            if attempt < num_retries:
                met.remove((attempt, fault))
                self.faults.remove(fault)
        self._replies.keep(self.slug, digest, reply)

    def kept_reply(self, digest: bytes) -> bytes | None:
        """The earlier reply to the same request body: a retry must not sample a second turn."""
        if self._owed[digest]:
            self._owed[digest] -= 1
            return None
        return self._replies.find(self.slug, digest)

    def note_reply(self, reply_id: str, turn: int, *, choice: int = 0) -> None:
        """Remember which turn is this choice of the reply with this id."""
        self.turns_of_reply.setdefault(reply_id, {})[choice] = turn

    def gave(self, reply_id: str) -> bool:
        """Whether that reply is one of this session's, or will be."""
        return (
            reply_id in self.turns_of_reply or reply_id in self.streaming or reply_id in self._left
        )

    @contextmanager
    def streaming_reply(self, reply_id: str) -> Iterator[None]:
        """Mark the reply, within this block, as one that may still grow beyond its delivered part."""
        over = self.streaming[reply_id] = asyncio.Event()
        try:
            yield
        finally:
            del self.streaming[reply_id]
            over.set()

    def leave(self, left: AbandonedReply) -> None:
        """Keep a reply whose client left. The next request makes it a turn, unless it is its retry."""
        if not self._closed:
            self._left.add(left)

    def begin_attempt(self, digest: bytes, *, num_retries: int) -> None:
        """Begin a request. Replies whose clients left before it become turns, except an earlier attempt at this
        request."""
        self._left.asked_again(digest, num_retries=num_retries)
        self.keep_left()

    def keep_left(self) -> None:
        """Record abandoned replies as turns, since no retry of them came."""
        for left in self._left.take():
            self.note_reply(left.reply_id, left.record(), choice=left.choice)

    def post_reward(
        self, reward: float, *, turn: int | str | None = None, choice: int | None = None
    ) -> PostedReward:
        """Keep a verdict. `turn` is the index of a turn, or the id of the reply that became this turn.

        `choice` is the number of the rewarded choice, for a reply with several.
        """
        if self.judged_by:
            raise judged_elsewhere(self.judged_by)
        check_reward(reward)
        if choice is not None and not isinstance(turn, str):
            raise bad_request(
                'choice says which one of a reply: give the reply\'s id as "turn"', param="choice"
            )
        self.keep_left()
        index = turn if not isinstance(turn, str) else self._turn_of(turn, choice)
        if turn is not None and (index is None or not 0 <= index < len(self._turns)):
            raise bad_request(
                f"turn {turn!r} is not one of this session's {len(self._turns)}", param="turn"
            )
        posted = PostedReward(reward, index)
        self.rewards.append(posted)
        return posted

    def _turn_of(self, reply_id: str, choice: int | None) -> int | None:
        is_repeated = reply_id in self.repeated_replies
        return turn_of_choice(self.turns_of_reply.get(reply_id, {}), reply_id, choice, is_repeated)

    def _exclude_side_calls(self) -> None:
        for index in side_calls(self._turns):
            turn = self._turns[index]
            if turn.excluded is None:
                self._turns[index] = replace(turn, excluded=Exclusion.SIDE_CALL)
                self.excluded[Exclusion.SIDE_CALL] += len(turn.output_tokens)

    def notice(self, text: str) -> bool:
        """Keep a notice, or its beginning; False when the session has it already, or enough."""
        text = text[:_LONGEST_NOTICE]
        if len(self.notices) >= _MAX_NOTICES or text in self.notices:
            return False
        self.notices.append(text)
        return True

    def keep_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Keep the metadata of a request, except fields that are too large."""
        for name, value in metadata.items():
            is_known = name in self.metadata
            if is_known and self.metadata[name] == value:
                continue
            if (is_known or len(self.metadata) < _MAX_METADATA) and (
                len(orjson.dumps(value)) <= _MAX_METADATA_BYTES
            ):
                self.metadata[name] = value

    def close(self, *, keeps_streams: bool = False) -> tuple[Turn, ...]:
        """End the session and return its turns, final now. Safe to call twice.

        A completion that is being sampled is aborted; its client gets `refusal`. With `keeps_streams`, its delivered
        part becomes a turn.
        """
        if not self._closed:
            for leave in list(self._sampling.values()):
                if keeps_streams and leave is not None:
                    leave()
            self.keep_left()
            self._closed = True
            if not self.sampling.trains_side_calls:
                self._exclude_side_calls()
            self.history = History()
            self.body = IncrementalBody()
            self._latest_prompt = ()
            self._on_close(self)
            for stop in list(self._sampling):
                stop()  # what is sampled too late belongs to nobody: free its slot
        return tuple(self._turns)
