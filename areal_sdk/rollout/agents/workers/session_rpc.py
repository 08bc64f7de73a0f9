"""An episode's session, called from a worker over RPC, and the messages that carry the calls.

The main process sends a `PlayOrder`; the worker plays it with a `RemoteSession`, whose calls the
session in the main process answers. The messages are pickles, because tasks hold values of users.
Only types of the SDK travel back, so that the main process imports nothing that an agent needs.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, cast

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import (
    AgentError,
    DeadlineError,
    EnvError,
    EpisodeError,
    InfrastructureError,
    RemoteError,
    RewardError,
)
from areal_sdk.gateway.errors import ApiError, session_closed
from areal_sdk.process import ChannelClosedError, clean_text
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Answer, Bulk, MainClient, Service
from areal_sdk.reward import as_outcome, as_turn_rewards
from areal_sdk.rollout.agents.adapters import PlayResult
from areal_sdk.rollout.judging.verdicts import portable
from areal_sdk.types import Episode, Message, Outcome, Task, Tool, Turn, unpack_turns

_ERRORS: Mapping[str, type[EpisodeError]] = {
    error.kind.value: error
    for error in (AgentError, RewardError, EnvError, InfrastructureError, DeadlineError)
}
_NOBODY = Episode("", Task(""), (), Outcome.abstained())


@dataclass(frozen=True, slots=True)
class PlayOrder:
    """An episode for a worker: the task, and the plain fields of its `EpisodeContext`."""

    task: Task
    base_url: str
    api_key: str
    model: str
    episode_id: str
    seed: int
    split: str


def pack_order(task: Task, context: EpisodeContext) -> bytes:
    order = PlayOrder(
        task=task,
        base_url=context.base_url,
        api_key=context.api_key,
        model=context.model,
        episode_id=context.episode_id,
        seed=context.seed,
        split=context.split,
    )
    try:
        return _pickle(order)
    except Exception as exc:
        raise InfrastructureError(  # no agent is to blame
            f"task {task.id!r} cannot be sent to a worker ({exc}): keep to plain values in "
            "Task.data, or set rollout.workers = 0"
        ) from exc


def unpack_order(packed: bytes | memoryview) -> PlayOrder:
    try:
        return _unpickle(packed)  # type: ignore[no-any-return]
    except Exception as exc:
        raise InfrastructureError(
            f"a task cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain values "
            "and importable classes in Task.data, or set rollout.workers = 0"
        ) from exc


def pack_result(result: Any) -> bytes:
    """The agent's result, reduced to types of the SDK. ValueError if the result is not a verdict."""
    return _pickle(_plain(result))


def unpack_result(packed: bytes | memoryview) -> PlayResult:
    return _unpickle(packed)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The value or the error of a call from a worker to its session."""

    value: Any = None
    error: Exception | None = None


def pack_call_result(value: Any = None, error: Exception | None = None) -> bytes:
    """The pickled result. An exception that cannot be pickled becomes a `RuntimeError` that names it."""
    if error is not None:
        return _pickle(_portable_error(error))
    return _pickle((value, None))


def unpack_call_result(packed: bytes | memoryview) -> CallResult:
    value, error = _unpickle(packed)
    if isinstance(error, dict):  # an ApiError takes keywords, which pickle does not keep
        error = ApiError(**error)
    return CallResult(value, error)


def pack_request(**request: Any) -> bytes:
    """Pickle the arguments of `context.generate`."""
    return _pickle(request)


def unpack_request(packed: bytes | memoryview) -> Mapping[str, Any]:
    return _unpickle(packed)  # type: ignore[no-any-return]


def _portable_error(error: Exception) -> tuple[None, Any]:
    if isinstance(error, ApiError):
        return None, dict(vars(error))
    try:
        pickle.loads(_pickle(error))
    except Exception:  # noqa: BLE001 - an exception may do anything when it is copied
        return None, RuntimeError(f"{type(error).__name__}: {error}")
    return None, error


def _plain(result: Any) -> Any:
    """`result` with plain Python numbers; an `Episode` without its task's data."""
    if isinstance(result, Episode):
        return replace(result, task=Task(result.task.id), outcome=_plain(result.outcome))
    if isinstance(result, Outcome):
        return portable(result)
    if isinstance(result, Mapping):
        return dict(zip(map(str, result), as_turn_rewards([*result.values()]), strict=True))
    if hasattr(result, "item"):
        result = result.item()
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        return list(as_turn_rewards(result))
    if result is not None and not isinstance(result, (bool, int, float)):
        as_outcome(result, _NOBODY)  # the error lists what a verdict may be
    return result


def _pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(packed: bytes | memoryview) -> Any:
    return pickle.loads(packed)


TURNS_TIMEOUT_S = 60.0
"""Deadline of `turns`, which the main process answers from memory."""
EPISODE_BACKSTOP_S = 7 * 86400.0
"""Longest wait for an episode or for one of its turns. The runner's deadline ends both much earlier."""


@dataclass(frozen=True, slots=True)
class Played:
    """The end of an episode in a worker: the packed result of its agent, or an error."""

    result: Bulk | None
    kind: str = ""
    message: str = ""
    trace: str = ""

    @classmethod
    def failed(cls, error: EpisodeError) -> Self:
        return cls(None, error.kind.value, clean_text(str(error)), clean_text(error.trace))

    def unpack(self) -> PlayResult:
        """The result of the agent. If the episode failed, raises its `EpisodeError`, as playing in this process would."""
        if self.result is None:
            raise _ERRORS[self.kind].at("", self.message, trace=self.trace)
        return unpack_result(view_of(self.result))


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickle of types of the SDK."""

    value: Bulk


class AgentCalls(Service, Protocol):
    """Contract of a worker that plays episodes."""

    def play(self, number: int, episode_id: str, order: Bulk) -> Answer[Played]:
        """Play an episode. Only `stop` ends its code."""

    def stop(self, number: int) -> Answer[bool]:
        """Cancel an episode. The answer says whether its code is gone."""


class SessionCalls(Service, Protocol):
    """Contract of the main process: calls that the episode with a number makes."""

    def generate(self, number: int, request: Bulk) -> Answer[Packed]: ...

    def turns(self, number: int, since: int) -> Answer[Packed]: ...

    def blocked(self, number: int, where: str) -> Answer[None]:
        """Report that code of the episode, at `where`, blocks the event loop of its worker."""


class RemoteSession:
    """`generate` and `turns` of an episode's context in a worker. Refuses calls after `close`.

    The main process refuses the calls of an episode that it has ended.
    """

    def __init__(self, number: int, main: MainClient[SessionCalls]) -> None:
        self._number = number
        self._main = main
        self._known: list[Turn] = []
        self._is_closed = False

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
        """Sample one turn. The main process records the turn before it returns it."""
        packed = pack_request(
            prompt=prompt,
            tools=tools,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            stop_tokens=stop_tokens,
            policy=policy,
        )
        with self._refusals():
            answer = await self._main.call(
                SessionCalls.generate, self._number, packed, timeout_s=EPISODE_BACKSTOP_S
            )
        return cast(Turn, _value(answer))

    def turns(self) -> Sequence[Turn]:
        """The turns recorded so far, from HTTP requests and from `generate`.

        Blocks the calling thread, and so its event loop, until the main process answers.
        """
        if not self._is_closed:
            with self._refusals():
                answer = self._main.wait(
                    SessionCalls.turns, self._number, len(self._known), timeout_s=TURNS_TIMEOUT_S
                )
            self._known += unpack_turns(_value(answer), self._known)
        return self._known

    def close(self) -> None:
        """Refuse all later calls, because the episode is over."""
        self._is_closed = True

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        if self._is_closed:
            raise session_closed()
        try:
            yield
        except (RemoteError, ChannelClosedError):  # the episode is over, or the run is
            raise session_closed() from None


def _value(answer: Packed) -> Any:
    result = unpack_call_result(view_of(answer.value))
    if result.error is not None:
        raise result.error
    return result.value
