"""What crosses between the main process and an agent's worker, in both directions.

Pickles, because tasks and messages hold what users put there. Only our own types travel back, so
that the main process imports nothing that an agent needs.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal_sdk.agent import EpisodeContext
from areal_sdk.errors import (
    AgentError,
    DeadlineError,
    EnvironmentFailure,
    EpisodeError,
    InfrastructureError,
    RewardError,
)
from areal_sdk.gateway.errors import ApiError
from areal_sdk.reward import as_outcome
from areal_sdk.rollout.agents import PlayResult
from areal_sdk.types import Episode, Outcome, Task

_ERRORS: Mapping[str, type[EpisodeError]] = {
    error.kind.value: error
    for error in (AgentError, RewardError, EnvironmentFailure, InfrastructureError, DeadlineError)
}
_NOBODY = Episode("", Task(""), (), Outcome.abstained())


@dataclass(frozen=True, slots=True)
class Order:
    """One episode to play: the task, and the fields of its `EpisodeContext` that are plain data."""

    task: Task
    base_url: str
    api_key: str
    model: str
    episode_id: str
    seed: int
    split: str


def pack_order(task: Task, context: EpisodeContext) -> bytes:
    order = Order(
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


def unpack_order(packed: bytes | memoryview) -> Order:
    try:
        return _unpickle(packed)  # type: ignore[no-any-return]
    except Exception as exc:
        raise InfrastructureError(
            f"a task cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain values "
            "and importable classes in Task.data, or set rollout.workers = 0"
        ) from exc


def pack_result(result: Any) -> bytes:
    """What an agent returned, reduced to our own types. ValueError for what is no verdict."""
    return _pickle(_plain(result))


def unpack_result(packed: bytes | memoryview) -> PlayResult:
    return _unpickle(packed)  # type: ignore[no-any-return]


def error_of(kind: str, message: str, *, trace: str) -> EpisodeError:
    """The error that a worker reported, as it would have been raised here."""
    return _ERRORS[kind].at("", message, trace=trace)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of something that a worker asked of its session."""

    value: Any = None
    error: Exception | None = None


def pack_answer(value: Any = None, error: Exception | None = None) -> bytes:
    """As it is; an exception that cannot travel becomes a `RuntimeError` with its name in it."""
    if error is not None:
        return _pickle(_portable_error(error))
    return _pickle((value, None))


def unpack_answer(packed: bytes | memoryview) -> Answer:
    value, error = _unpickle(packed)
    if isinstance(error, dict):  # an ApiError takes keywords, which pickle does not keep
        error = ApiError(**error)
    return Answer(value, error)


def pack_request(**request: Any) -> bytes:
    """The arguments of `context.generate`."""
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
    """Numbers of numpy and torch become Python's; of an episode, what decides its training."""
    if isinstance(result, Episode):
        return replace(result, task=Task(result.task.id), outcome=_plain(result.outcome))
    if isinstance(result, Outcome):
        return replace(
            result,
            reward=_number(result.reward),
            turn_rewards=tuple(_number(reward) for reward in result.turn_rewards),
            success=None if result.success is None else bool(result.success),
            metrics={str(name): float(value) for name, value in result.metrics.items()},
            message=str(result.message),
        )
    if isinstance(result, Mapping):
        return {str(name): float(value) for name, value in result.items()}
    if hasattr(result, "item"):
        result = result.item()
    if isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        return [_number(reward) for reward in result]
    if result is not None and not isinstance(result, (bool, int, float)):
        as_outcome(result, _NOBODY)  # says what a verdict may be
    return result


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _pickle(item: object) -> bytes:
    return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle(packed: bytes | memoryview) -> Any:
    return pickle.loads(packed)
